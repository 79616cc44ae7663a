import json
from dataclasses import replace

import pytest

from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.ops import Phase
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import compare_timelines
from tests.hand_timelines import play


def measured(schedule, forward_s=1.25, backward_s=2.0):
    seconds = {Phase.FORWARD: forward_s, Phase.BACKWARD: backward_s}
    return play(schedule, source="measured", seconds=lambda op: seconds[op.phase])


def test_a_run_agrees_with_itself():
    line = play(one_f_one_b(3, 5), 0.25)
    comparison = compare_timelines(line, line)
    assert {row["error"] for row in comparison.to_rows()} == {0.0}
    assert {kind.difference_s for kind in comparison.ops} == {0.0}


def test_errors_are_relative_to_what_was_measured():
    comparison = compare_timelines(play(gpipe(2, 4)), measured(gpipe(2, 4)))
    makespan = comparison.quantities[0]
    assert (makespan.name, makespan.predicted, makespan.measured) == ("makespan_s", 15.0, 16.25)
    assert makespan.error == pytest.approx((15.0 - 16.25) / 16.25)


def test_every_device_has_busy_idle_and_peak_memory():
    comparison = compare_timelines(play(gpipe(2, 4)), measured(gpipe(2, 4)))
    values = {(q.name, q.device): (q.predicted, q.measured) for q in comparison.quantities}
    for device in (0, 1):
        assert values["busy_s", device] == (12.0, 13.0)
        assert values["idle_s", device] == (3.0, 3.25)
        assert values["peak_memory_bytes", device] == (2 * 2**20, 2 * 2**20)


def test_memory_that_was_not_looked_at_is_unknown_and_so_is_its_error():
    blind = replace(measured(gpipe(2, 2)), memory=())
    peaks = [q for q in compare_timelines(play(gpipe(2, 2)), blind).quantities if q.name == "peak_memory_bytes"]
    assert [(q.measured, q.error) for q in peaks] == [(None, None)] * 2


def test_a_measured_zero_has_no_relative_error():
    blocked = [q for q in compare_timelines(play(gpipe(1, 2)), measured(gpipe(1, 2))).quantities if q.name == "idle_s"]
    assert blocked[0].error == 0.0
    waiting = next(
        kind for kind in compare_timelines(play(gpipe(2, 2), 0.5), play(gpipe(2, 2))).ops if kind.kind == "SEND_F"
    )
    assert (waiting.predicted_s, waiting.measured_s, waiting.error) == (0.5, 0.0, None)


def test_the_largest_disagreement_is_counted_over_all_ops_of_a_kind():
    def seconds(op):
        if op.phase is Phase.FORWARD:
            return 1.5 if op.stage == 1 else 1.0
        return 2.0

    largest = compare_timelines(play(gpipe(3, 4)), play(gpipe(3, 4), seconds=seconds)).largest_disagreement
    assert largest is not None
    assert (largest.kind, largest.stage, largest.count, largest.difference_s) == ("F", 1, 4, -2.0)


def test_other_op_lists_are_refused_where_they_first_differ():
    with pytest.raises(SimulationError, match=r"rank 0: op \d+: got .*, expected .*; try two runs of one schedule$"):
        compare_timelines(play(gpipe(2, 4)), play(one_f_one_b(2, 4)))


def test_a_run_that_ended_early_is_refused():
    whole = play(gpipe(2, 4))
    with pytest.raises(SimulationError, match=r"rank 1: op \d+: got the end, expected 1STEP"):
        compare_timelines(whole, replace(whole, spans=whole.spans[:-1]))


def test_other_ranks_are_refused_in_one_line():
    with pytest.raises(SimulationError, match=r"got ranks on devices \[0, 1, 2\], expected \[0, 1\]") as caught:
        compare_timelines(play(gpipe(2, 4)), play(gpipe(3, 4)))
    assert "\n" not in str(caught.value)


def test_a_comparison_is_plain_data():
    data = compare_timelines(play(gpipe(2, 2)), measured(gpipe(2, 2))).to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
