"""What is held during ops that take no time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Cluster, Device
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import ScheduleError, Span, make_schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.columns import SpanColumns
from pipesched.schedules.formats.timeline_json import timeline_from_json, timeline_to_json
from pipesched.schedules.ops import Compute, Phase, Step, backward, forward
from pipesched.schedules.transforms import recompute
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import Instants, memory, over_capacity, peak_memory
from pipesched.simulator.views import to_trace
from tests.properties import examples
from tests.simulator.memory.readable_lifetimes import timed_ops
from tests.trace_rules import check_trace

SIZES = st.integers(0, 100)


def test_what_takes_no_time_comes_one_after_the_other_and_a_prediction_is_dropped_last():
    ahead = Compute(Phase.FORWARD, 0, 2, version=1, lookahead=1)
    times = [(forward(0, 0), 0, 1), (backward(0, 0), 1, 3), (Step(0), 3, 3), (forward(0, 1, 1), 3, 3), (ahead, 3, 4)]
    spans = [Span(0, op, start, start, end) for op, start, end in times]
    columns = SpanColumns.of(spans, 1)
    instants = Instants(columns.ops.cells, columns.posted_s, columns.starts_s, columns.ends_s, 0.0)
    of_cells = zip(*instants.of(np.arange(20)), strict=True)
    points = [(float(time_s), int(order)) for time_s, order in of_cells]
    assert [tuple(points[4 * cell + 1 : 4 * cell + 4]) for cell in range(5)] == [
        (tuple(op.start), tuple(op.end), tuple(op.over)) for op in timed_ops(spans)
    ]
    assert [tuple(points[4 * cell + 1 : 4 * cell + 4]) for cell in range(5)] == [
        ((0, 0), (1, 0), (1, 0)),
        ((1, 0), (3, 0), (3, 0)),
        ((3, 0), (3, 1), (3, 1)),
        ((3, 1), (3, 2), (3, 2)),
        ((3, 2), (4, 0), (4, 1)),
    ]


@pytest.mark.parametrize("step_s", [0.0, 1e-9])
def test_gradients_are_held_during_a_step_also_of_no_time(step_s):
    # at the Step of micro-batch i stage k has weights, gradients, and i + 1 .. i + 3 - k in flight
    costs = StageCosts((StageCost(1.0, 2.0, step_s=step_s, saved_bytes=10, weight_bytes=1000),) * 4)
    schedule = build("vanilla_1f1b", 4, 16)
    timeline = simulate_lists(schedule, costs)
    samples = memory(timeline, costs, schedule)
    assert {device: peak.total_bytes for device, peak in peak_memory(samples).items()} == {
        0: 2030, 1: 2020, 2: 2010, 3: 2000
    }  # fmt: skip
    overflow = over_capacity(samples, Cluster((Device(memory_bytes=1500),) * 4), timeline)
    assert str(overflow) == "device 3 holds 2000 bytes of 1500 from 6 s on, at 3STEP of rank 3"


@pytest.mark.parametrize("seconds", [0.0, 2.0**-30])
def test_an_op_of_no_time_holds_what_it_holds(seconds):
    """F 7, B beside it, then weights and gradients at the Step, which keeps a copy: one behind the other."""
    ops = [forward(0, 0), backward(0, 0), forward(0, 1), Step(0), backward(0, 1), Step(0)]
    costs = StageCosts((StageCost(seconds, seconds, step_s=seconds, saved_bytes=7, weight_bytes=50),))
    schedule = make_schedule("instant", 1, 2, [ops])
    samples = memory(simulate_lists(schedule, costs), costs, schedule)
    peak = peak_memory(samples)[0]
    assert {kind: num_bytes for kind, num_bytes in peak.bytes_by_kind if num_bytes} == {
        "weights": 50, "weight_versions": 50, "gradients": 50, "activations": 7
    }  # fmt: skip


def test_what_is_held_on_the_way_through_one_time_can_be_written_read_and_traced():
    costs = StageCosts((StageCost(1.0, 2.0, saved_bytes=7, weight_bytes=50),) * 2)
    schedule = build("vanilla_1f1b", 2, 4)
    timeline = simulate_lists(schedule, costs)
    timeline = replace(timeline, memory=memory(timeline, costs, schedule))
    places = [(sample.device, sample.time_s) for sample in timeline.memory]
    assert places == sorted(places)
    assert len(set(places)) < len(places)
    assert timeline_from_json(timeline_to_json(timeline), "t.json") == timeline
    assert check_trace(to_trace(timeline)) == []


PIECES = st.sampled_from([(1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (0.0, 0.0, 0.0)])


@examples(30)
@given(name=st.sampled_from(sorted(CATALOGUE)), p=st.integers(1, 4), m=st.integers(1, 8), pieces=PIECES, data=st.data())
def test_next_to_no_time_and_none_have_the_same_peak(name, p, m, pieces, data):
    try:
        schedule = build(name, p, m)
    except ScheduleError:
        return  # these counts are not for this schedule
    schedule = recompute(schedule) if data.draw(st.booleans()) else schedule
    sizes = data.draw(st.lists(st.tuples(SIZES, SIZES), min_size=schedule.num_stages, max_size=schedule.num_stages))

    def peaks(least_s):
        f, i, w = (max(seconds, least_s) for seconds in pieces)
        cost = StageCost(f, max(least_s, i + w), i, w, step_s=least_s)
        stages = tuple(replace(cost, saved_bytes=saved, weight_bytes=weights) for saved, weights in sizes)
        costs = StageCosts(stages)
        return {
            device: peak.total_bytes
            for device, peak in peak_memory(memory(simulate_lists(schedule, costs), costs, schedule)).items()
        }

    assert peaks(0.0) == peaks(2.0**-30)
