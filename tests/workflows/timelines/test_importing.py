"""`import_traces`: what the library refuses, and what a result shows."""

import pytest

import pipesched
from tests.profiles.traces.kineto_files import two_ranks


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"files": []}, r"files: got an empty list, expected a trace of every rank"),
        ({"files": "rank0.json"}, r"files: got 'rank0.json', expected a list"),
        ({"files": [5]}, r"files: got 5, expected paths"),
        ({"patterns": "x"}, r"patterns: got 'x', expected a list"),
        ({"patterns": [None]}, r"patterns: got None, expected a text"),
        ({"step": -1}, r"step: got -1, expected at least 0"),
        ({"step": 1.5}, r"step: got 1.5, expected an integer"),
        ({"schedule": 3}, r"schedule: got 3, expected a Schedule"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(keywords, message):
    with pytest.raises(pipesched.ArgumentError, match=message):
        pipesched.import_traces(**({"files": ["a.json", "b.json"]} | keywords))


def test_a_result_says_that_stages_were_counted(tmp_path):
    paths = two_ranks(tmp_path, lambda stage, phase, microbatch: f"{phase}-step", count=4)
    counted = pipesched.import_traces(paths, patterns=["(?P<phase>[FB])-step"])
    line = next(line for line in counted.table().caption.splitlines() if "assumed" in line)
    assert line.startswith(
        "the names of the passes have no stage: one stage on each rank is assumed, with 4 micro-batches"
    )
    assert "(-s, -p, -m, --chunks)" in line
    assert counted.to_dict()["is_counted"]
    assert "assumed" not in pipesched.import_traces(two_ranks(tmp_path)).table().caption


def test_a_result_has_a_frame_a_table_and_a_file(tmp_path):
    imported = pipesched.import_traces(two_ranks(tmp_path))
    frame = imported.to_frame()
    assert list(frame["busy_s"]) == pytest.approx([400e-6, 400e-6])
    assert sum(imported.bubble_by_cause.values()) == pytest.approx(imported.bubble_fraction)
    assert repr(imported) == "TraceImport('gpipe', ranks=2, makespan_s=0.00062, bubble_fraction=0.3548)"
    assert "rank1.json" in imported._repr_html_()
    assert len(imported.plot().axes) > 0
    imported.save(tmp_path / "run.json")
    assert pipesched.gantt(tmp_path / "run.json").timelines == (imported.timeline,)
