"""Traces that PyTorch's own runtime writes, of two processes over gloo, against what stands in them."""

import gzip
import json
import re
from itertools import pairwise

import pytest

from pipesched.profiles.traces import read_traces
from pipesched.schedules.ops import computes
from tests.executor.job_sequence_ranks import run_module
from tests.profiles.traces.torch_ranks import KINDS, MICROBATCHES, STEPS
from tests.torch_releases import runtime_of_2_13

NAMES = {"annotated": "1f1b"}

pytestmark = [pytest.mark.distributed, pytest.mark.slow, runtime_of_2_13]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the traces of both ranks under every schedule."""
    folder = tmp_path_factory.mktemp("traces")
    run_module("tests.profiles.traces.torch_ranks", 2, folder)
    return folder


def paths(folder, name):
    return sorted(folder.glob(f"{name}[01].json*"))


def passes(schedule):
    return [[str(op) for op in row if computes(op)] for row in schedule.ops]


def named(path):
    """Return the passes that annotate named in the last step, in order of time."""
    events = json.loads(path.read_text())["traceEvents"]
    step = next(event for event in events if event["name"] == f"ProfilerStep#{STEPS}")
    inside = [e for e in events if e["ph"] == "X" and step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
    ranges = [event for event in inside if re.match(r"PP:\d+[FBIW]\d+$", event["name"])]
    return sorted(ranges, key=lambda event: event["ts"])


@pytest.mark.parametrize("name", KINDS)
def test_each_schedule_is_recognized_and_its_work_does_not_overlap(folder, name):
    read = read_traces(paths(folder, name))
    assert read.timeline.name == NAMES.get(name, name)
    assert read.step == STEPS
    for rank in (0, 1):
        works = [span for span in read.timeline.work if span.rank == rank]
        assert all(first.end_s <= second.start_s for first, second in pairwise(works))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("marks", [("ProfilerStep",), ("ProfilerStep", "Optimizer.step")], ids=["optimizers", "none"])
def test_steps_without_the_profilers_marks_are_those_with_them(folder, tmp_path, name, marks):
    files, merged = [], []
    for rank, path in enumerate(paths(folder, name)):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        trace = json.loads(text)
        trace["traceEvents"] = [e for e in trace["traceEvents"] if not str(e.get("name")).startswith(marks)]
        files.append(tmp_path / f"{rank}.json")
        files[-1].write_text(json.dumps(trace))
        merged += [event | {"pid": f"{rank} of {event.get('pid')}"} for event in trace["traceEvents"]]
    marked, unmarked = read_traces(paths(folder, name)), read_traces(files)
    assert unmarked.step == STEPS - 1
    assert passes(unmarked.schedule) == passes(marked.schedule)
    starts = [
        [span.end_s - span.start_s for span in read.timeline.work if computes(span.op)] for read in (marked, unmarked)
    ]
    assert starts[0] == pytest.approx(starts[1], abs=1e-8)
    (tmp_path / "merged.json").write_text(json.dumps(merged))
    assert passes(read_traces([tmp_path / "merged.json"]).schedule) == passes(marked.schedule)


def test_passes_that_nobody_named_are_those_that_annotate_names(folder):
    unnamed, annotated = (read_traces(paths(folder, name)).schedule for name in ("1f1b", "annotated"))
    expected = [[event["name"].removeprefix("PP:") for event in named(path)] for path in paths(folder, "annotated")]
    assert passes(unnamed) == passes(annotated) == expected


def test_annotated_passes_last_as_long_as_their_ranges(folder):
    timeline = read_traces(paths(folder, "annotated")).timeline
    for rank, path in enumerate(paths(folder, "annotated")):
        spans = {str(span.op): span for span in timeline.of_rank(rank)}
        for event in named(path):
            span = spans[event["name"].removeprefix("PP:")]
            assert span.end_s - span.start_s == pytest.approx(event["dur"] / 1e6, abs=1e-8)


def test_clocks_with_a_known_shift_are_aligned_to_less_than_the_one_way_latency(folder, tmp_path):
    """Both ranks ran on this host, so that whatever is found beyond the shift is the error."""
    shift_ns = 300_000_000
    first, second = paths(folder, "1f1b")
    shifted = json.loads(second.read_text())
    shifted["baseTimeNanoseconds"] += shift_ns
    (tmp_path / "shifted.json").write_text(json.dumps(shifted))
    clocks = read_traces([first, tmp_path / "shifted.json"]).clocks
    ends = []
    for path in (first, second):
        events = sorted(json.loads(path.read_text())["traceEvents"], key=lambda event: event.get("ts", 0))
        ends.append({
            "sent": [event["ts"] for event in events if event["name"] == "c10d::send"],
            "there": [event["ts"] + event["dur"] for event in events if event["name"] == "gloo:recv"],
        })  # fmt: skip
    slower_us = max(
        min(there - sent for sent, there in list(zip(sender["sent"], receiver["there"], strict=True))[-MICROBATCHES:])
        for sender, receiver in (ends, ends[::-1])
    )
    error_ns = abs(clocks.offsets_ns[1] - shift_ns)
    assert error_ns <= clocks.uncertainties_ns[1]
    assert error_ns / 1000 < slower_us


def test_a_trace_that_does_not_tell_its_passes_says_what_is_named(folder, tmp_path):
    files = []
    for rank, path in enumerate(paths(folder, "1f1b")):
        trace = json.loads(path.read_text())
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") != "fwdbwd"]
        files.append(tmp_path / f"{rank}.json")
        files[-1].write_text(json.dumps(trace))
    with pytest.raises(
        ValueError, match=r"got no range of a pass, .*'Optimizer.zero_grad#SGD.zero_grad'.*pipesched.annotate"
    ):
        read_traces(files)
