"""The command ``verify --rounds``."""

import json

import pytest


@pytest.mark.distributed
def test_rounds_are_printed_as_data_and_the_median_one_is_written(pipesched, folder, monkeypatch):
    monkeypatch.setattr("pipesched.workflows.verifying.verification.num_companions", lambda *_: 0)  # no busy cores
    answer = pipesched(
        "verify mlp:width=8,layers=4 -s gpipe -p 2 -m 4 --rounds 2 --iterations 1 --precision 10 --json --out out"
    )
    assert (answer.code, answer.err) == (0, "")
    report = json.loads(answer.out)
    assert len(report["machine"]["of_rounds"]) == 2
    (several,) = report["schedules"]
    assert several["name"] == "gpipe"
    assert several["error"]["low"] <= several["error"]["median"] <= several["error"]["high"]
    assert [len(several["rounds"]), report["precision"]] == [2, 10.0]
    for verified in several["rounds"]:
        makespan = verified["split"]["parts"][0]
        parts = makespan["costs_s"] + makespan["hand_over_s"] + makespan["rest_s"]
        assert parts == pytest.approx(makespan["error_s"], abs=1e-9)
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "gpipe-measured.json", "gpipe-predicted.json", "gpipe-trace.json", "gpipe.html", "gpipe.png",
    ]  # fmt: skip
