"""What makes no sense in a run is refused by the name of its argument, before any process is started."""

import pytest

import pipesched
from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import build

MODEL = "mlp:width=8,layers=4"


def run(**arguments):
    return pipesched.run(build("1f1b", 2, 4), MODEL, **arguments)


def verify(**arguments):
    return pipesched.verify(MODEL, **({"schedules": [build("1f1b", 2, 4)]} | arguments))


def train(**arguments):
    return pipesched.train(MODEL, **({"schedule": build("1f1b", 2, 4)} | arguments))


def profile(**arguments):
    return pipesched.profile(MODEL, **arguments)


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("started")

    monkeypatch.setattr("pipesched.executor.runs.launcher.Processes", refuse)
    monkeypatch.setattr("pipesched.profiles.measuring.profile_model", refuse)


@pytest.mark.parametrize(
    ("call", "arguments", "words"),
    [
        (verify, {"schedules": "gpipe"}, "schedules: got 'gpipe', expected a list"),
        (verify, {"prediction": PredictionRule.ADAM}, "prediction: got adam with 1f1b"),
        (train, {"schedule": 5}, "schedule: got 5"),
        (train, {"cluster": pipesched.flat(2)}, "cluster: got it without `costs` or `profile`"),
        (train, {"limit_bytes": 10**9}, "limit_bytes: got 1000000000, expected `advance`"),
        (
            train,
            {"schedule": build("gpipe", 2, 2), "prediction": PredictionRule.ADAM},
            "prediction: got adam with gpipe",
        ),
        (profile, {"dtype": "int32"}, "dtype: got 'int32'"),
        (profile, {"dtype": "complex64"}, "dtype: got 'complex64'"),
        (profile, {"microbatch_sizes": "4"}, "microbatch_sizes: got '4', expected an integer"),
        (profile, {"microbatch_sizes": [0]}, "microbatch_sizes: got 0"),
    ],
)
def test_an_argument_that_makes_no_sense_or_has_no_effect_is_named(call, arguments, words):
    with pytest.raises(pipesched.ArgumentError) as refused:
        call(**arguments)
    assert str(refused.value).startswith(words)


def test_under_torchrun_a_profile_is_given_to_all(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pipesched.ArgumentError, match=r"^profile: got none under torchrun"):
        verify()
