"""A prediction beside a run counts the receive buffers as the run allocates them."""

from types import SimpleNamespace

import pytest

import pipesched
from pipesched.profiles import measuring
from pipesched.workflows.verifying import verification
from tests.profiles.hand_profiles import layer, profile


@pytest.mark.parametrize(
    ("settings", "buffers"),
    [
        ({}, "pooled"),
        ({"transport": "streams"}, "pooled"),
        ({"device": "cuda"}, "at_use"),
        ({"device": "cuda", "transport": "processes"}, "pooled"),
    ],
)
@pytest.mark.parametrize("in_rounds", [False, True])
def test_a_run_is_predicted_with_the_buffers_that_it_has(monkeypatch, settings, buffers, in_rounds):
    given, layers = [], profile(layer(), layer())
    monkeypatch.setattr(verification, "require_possible", lambda _: None)
    monkeypatch.setattr(verification, "run_source", lambda source, *_, **__: SimpleNamespace(source=source))
    monkeypatch.setattr(verification, "predict_source", lambda _, setup: given.append(setup.buffers))
    monkeypatch.setattr(verification, "held_against", lambda *_: None)
    monkeypatch.setattr(verification, "profile_layers", lambda *_, **__: SimpleNamespace(profile=layers))
    monkeypatch.setattr(measuring, "yardstick_s", lambda *_: 1.0)
    lists = [pipesched.build("1f1b", 2, 2)]
    if in_rounds:
        pipesched.verify_rounds("mlp", lists, 2, **settings)
    else:
        pipesched.verify("mlp", lists, **settings)
    assert given == [buffers] * (2 if in_rounds else 1)
