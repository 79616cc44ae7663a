import csv
from pathlib import Path

import pandas as pd
import pytest

from pipesched.schedules import Span, Timeline
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.ops import Compute, Overlap, Phase, Step, backward, forward
from pipesched.simulator import SimulationError
from pipesched.simulator.views import timeline_frame as frame_module
from pipesched.simulator.views import to_frame, write_frame
from tests.hand_timelines import play

COLUMNS = [
    "rank", "device", "op", "phase", "stage", "microbatch", "version", "lookahead", "peer",
    "posted_s", "start_s", "end_s",
]  # fmt: skip


def test_every_span_is_a_row_in_order():
    line = play(one_f_one_b(3, 4), 0.5)
    frame = to_frame(line)
    assert list(frame.columns) == COLUMNS
    assert list(frame["op"]) == [str(span.op) for span in line.spans]
    assert list(frame["end_s"]) == [span.end_s for span in line.spans]


def test_sends_have_a_peer_and_computations_a_version():
    frame = to_frame(play(pipedream(2, 3)))
    assert set(frame.loc[frame["phase"] == "SEND_F", "peer"]) == {1}
    assert frame.loc[frame["phase"] == "SEND_F", "version"].isna().all()
    assert list(frame.loc[frame["op"].str.startswith("1F"), "version"]) == [0, 1, 2]
    assert frame.loc[frame["phase"] == "Step", "microbatch"].isna().all()


def test_an_overlap_leaves_out_what_it_has_twice():
    ops = [Overlap(forward(0, 1), backward(1, 0)), Compute(Phase.FORWARD, 0, 2, 3, 1), Step(0)]
    spans = tuple(Span(0, op, float(i), float(i), i + 1.0) for i, op in enumerate(ops))
    frame = to_frame(Timeline("by hand", "predicted", spans, (5,)))
    assert frame["phase"].tolist() == ["F+B", "F", "Step"]
    assert frame["stage"].isna().tolist() == [True, False, False]
    assert (frame["lookahead"][1], frame["version"][1], frame["device"][0]) == (1, 3, 5)


def test_an_empty_timeline_is_an_empty_table_of_the_same_types():
    empty, full = to_frame(Timeline("none", "predicted", (), (0,))), to_frame(play(one_f_one_b(2, 2)))
    assert empty.empty
    for column in ("rank", "peer", "start_s"):
        assert empty[column].dtype == full[column].dtype


def test_csv_comes_back_with_every_digit(tmp_path):
    line = play(one_f_one_b(2, 3), 0.1)
    write_frame(line, tmp_path / "spans.csv")
    with (tmp_path / "spans.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == COLUMNS
    assert [float(row["start_s"]) for row in rows] == [span.start_s for span in line.spans]
    assert [path.name for path in tmp_path.iterdir()] == ["spans.csv"]


def test_parquet_comes_back_the_same(tmp_path):
    line = play(one_f_one_b(2, 3), 0.1)
    write_frame(line, tmp_path / "spans.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "spans.parquet"), to_frame(line))


def test_parquet_without_pyarrow_names_the_package_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(frame_module, "find_spec", lambda name: None)
    with pytest.raises(SimulationError, match="package pyarrow"):
        write_frame(play(one_f_one_b(2, 2)), tmp_path / "spans.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["spans.xlsx", "spans", "missing/spans.csv"])
def test_a_file_that_cannot_be_is_refused_in_one_line(tmp_path: Path, name):
    with pytest.raises(SimulationError, match=", expected ") as caught:
        write_frame(play(one_f_one_b(2, 2)), tmp_path / name)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
