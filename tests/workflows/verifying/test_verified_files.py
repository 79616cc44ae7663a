"""Files are verified beside names, and what came of each is found by its name."""

import pytest

import pipesched
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json

MODEL = "mlp:width=8,layers=4"


@pytest.mark.distributed
def test_a_file_is_verified_beside_a_name(tmp_path):
    path = tmp_path / "g.json"
    path.write_text(to_json(build("gpipe", 2, 2)))
    profile = pipesched.profile(MODEL, [1], repeats=1, warmup=1, splits=False).profile
    with pipesched.session():
        verified = pipesched.verify(MODEL, [build("1f1b", 2, 2), str(path)], profile=profile, iterations=1, warmup=0)
    assert [schedule.name for schedule in verified.schedules] == ["1f1b", "gpipe"]
    with pytest.raises(KeyError, match="nope: expected one of 1f1b, gpipe"):
        verified["nope"]
    assert len(repr(verified)) < 300
