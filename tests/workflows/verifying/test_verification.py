"""The library sets prediction beside measurement, and the losses of a run beside those of the whole model."""

from dataclasses import replace

import pytest

import pipesched
from pipesched.schedules.formats import to_json

MODEL = "mlp:width=8,layers=4"
SCHEDULES = [pipesched.build(name, 2, 4) for name in ("gpipe", "1f1b")]


@pytest.fixture(scope="module")
def profile():
    return pipesched.profile(MODEL, [1, 2], repeats=1, warmup=1).profile


@pytest.mark.distributed
def test_runs_of_a_name_and_of_a_file_agree_with_the_model_in_one_piece(profile, tmp_path):
    (tmp_path / "g.json").write_text(to_json(SCHEDULES[0]))
    verified = pipesched.verify(MODEL, [str(tmp_path / "g.json"), SCHEDULES[1]], profile=profile, iterations=1)
    assert verified.agrees
    assert [schedule.name for schedule in verified.schedules] == ["gpipe", "1f1b"]
    with pytest.raises(KeyError, match="nope: expected one of gpipe, 1f1b"):
        verified["nope"]
    assert len(repr(verified)) < 300
    assert verified["1f1b"].loss == pytest.approx(verified["1f1b"].whole_loss, rel=1e-5)
    assert verified["1f1b"].predicted.source == "predicted"
    assert verified["1f1b"].measured.source == "measured"
    frame = verified.to_frame()
    errors = frame["predicted_s"] / frame["measured_s"] - 1
    assert list(frame["makespan_error"]) == pytest.approx(list(errors))
    assert "makespan" in verified._repr_html_()
    assert verified.plot().axes
    before = profile.provenance
    slow = replace(
        before, yardstick=replace(before.yardstick, kernel_s=1e3, num_busy=verified["1f1b"].measured.yardstick.num_busy)
    )
    assert (
        "100% faster in the run than in the profile, by"
        in replace(verified, profile=replace(profile, provenance=slow)).notes[0]
    )
    assert not replace(verified, schedules=(replace(verified["gpipe"], loss_difference=1.0),)).agrees


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schedules": []}, "schedules: got none"),
        ({"dtype": "float64"}, "profile: dtype: got a profile measured with float32"),
        ({"optimizer": "sgd"}, "profile: optimizer: got a profile measured with adamw"),
        ({"model": "mlp:width=16,layers=4"}, "profile: got a profile of mlp:width=8,layers=4"),
        ({"cluster": pipesched.flat(1)}, "cluster: devices: got 1, expected 2"),
    ],
)
def test_what_would_fail_is_refused_before_anything_runs(profile, arguments, words):
    with pytest.raises(pipesched.ArgumentError) as refused:
        pipesched.verify(**({"model": MODEL, "profile": profile, "schedules": SCHEDULES} | arguments))
    assert str(refused.value).startswith(words)
