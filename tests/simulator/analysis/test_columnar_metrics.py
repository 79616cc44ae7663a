"""The metrics of columns against independent loops over spans; and that no op is made for them."""

import subprocess
import sys

import pytest

from pipesched import DeviceCost, simulate
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.schedules.columns import OpColumns, SpanColumns
from pipesched.schedules.common import require_cells
from pipesched.simulator.analysis import metrics
from tests.hand_timelines import play, shaken


def busy_and_span(timeline, device):
    """Add up the works of a device, none of which lie side by side; return that, and how long it is between them."""
    works = [span for span in timeline.spans if timeline.rank_to_device[span.rank] == device and span.is_work]
    return (
        sum(span.end_s - span.start_s for span in works),
        max(span.end_s for span in works) - min(span.start_s for span in works),
    )


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zbv", "pipedream", "hanayo"])
def test_metrics_of_columns_are_those_of_a_loop_over_spans(name):
    timeline = shaken(play(build(name, 4, 8), 0.1))
    measures = metrics(timeline)
    assert measures.makespan_s == pytest.approx(
        max(span.end_s for span in timeline.without_messages) - min(span.start_s for span in timeline.without_messages)
    )
    for device in measures.devices:
        busy_s, span_s = busy_and_span(timeline, device.device)
        assert (device.busy_s, device.span_s) == pytest.approx((busy_s, span_s))
        assert device.idle_s == pytest.approx(measures.makespan_s - busy_s)
    assert measures.throughput == pytest.approx(8 / measures.makespan_s)


def test_columns_give_back_the_spans_that_they_were_made_of():
    timeline = play(build("dualpipe", 4, 8))
    columns = SpanColumns.of(timeline.spans, 4)
    assert len(columns) == len(timeline.spans)
    assert columns == timeline.spans


def test_a_simulation_makes_no_op_of_lists_as_columns(monkeypatch):
    schedule = build("interleaved", 4, 16)
    monkeypatch.setattr(OpColumns, "ops", lambda columns, rank: pytest.fail(f"an op of rank {rank} was made"))
    data = simulate(schedule, DeviceCost(1.0, 2.0)).to_dict()
    assert data["makespan_s"] == (16 * 2 + 3) * 3 / 2
    assert data["steady_s_per_microbatch"] == pytest.approx(data["makespan_s"] / 16)


def test_the_refusal_names_what_there_is_memory_for(monkeypatch):
    monkeypatch.setattr("pipesched.schedules.common.limits.room_bytes", lambda: 600_000_000)
    with pytest.raises(
        ScheduleError, match="expected at most 1000000 in all, for which there is memory; try 100 micro"
    ):
        require_cells("mine", 8, 10_000, 200)
    require_cells("mine", 8, 10_000, 100)
    with pytest.raises(ScheduleError, match="try 500000 stages"):
        require_cells("mine", 8, 3_000_000, 2)
    with pytest.raises(ScheduleError, match="got 100000 ranks, expected at most 22360"):
        build("1f1b", 100_000, 1)


@pytest.mark.slow
def test_many_ops_are_simulated_in_little_memory():
    """131,072 passes and their messages take 58 MB; as objects they and their spans would take 75 MB more."""
    code = (
        "import resource, pipesched; "
        "pipesched.simulate(pipesched.build('1f1b', 64, 64), pipesched.DeviceCost(1.0, 2.0)).to_dict(); "
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "pipesched.simulate(pipesched.build('1f1b', 128, 512), pipesched.DeviceCost(1.0, 2.0)).to_dict(); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < 88_000
