"""Recomputation after the gradient of the backward has arrived, as other trainers do it."""

import pytest

from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.check import require_runnable
from pipesched.schedules.formats import from_json, to_json
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Phase, computes
from pipesched.schedules.transforms import recompute
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import simulate_arrays
from tests.executor import models
from tests.executor.pipelines import SYNCHRONOUS, Local, any_schedule, assert_equal, whole_gradients
from tests.schedules.edits import without_steps

SECONDS = {Phase.FORWARD: 1, Phase.RECOMPUTE: 1, Phase.BACKWARD: 2, Phase.BACKWARD_INPUT: 1, Phase.BACKWARD_WEIGHT: 1}


def makespan(lists, num_stages):
    """Run compute-only lists, with messages that take no time, by going round the ranks until nothing is left."""
    over, clocks, at = {}, [0] * len(lists), [0] * len(lists)
    while any(at[rank] < len(row) for rank, row in enumerate(lists)):
        for rank, row in enumerate(lists):
            for part in computes(row[at[rank]]) if at[rank] < len(row) else ():
                s, k, phase, first = part.stage, part.microbatch, part.phase, "F"
                back = [(b, s + 1, k) for b in "BI" if phase in "BI" or (phase == "R" and part.is_late)]
                waits = [(first, s - 1, k)] if phase == "F" and s else back
                known = [over[wait] for wait in waits if wait in over]
                if waits and not known and not (back and s == num_stages - 1):
                    break
                over[str(phase), s, k] = clocks[rank] = max([clocks[rank], *known]) + SECONDS[phase]
            else:
                at[rank] += at[rank] < len(row)
    return max(clocks)


@pytest.mark.parametrize(("p", "m", "early", "late"), [(8, 8, 53, 60), (3, 4, 22, 24)])
def test_1f1b_takes_as_long_as_its_closed_form(p, m, early, late):
    assert late == (m + p - 1) * 4
    costs = StageCosts(tuple(StageCost(forward_s=1.0, backward_s=2.0) for _ in range(p)))
    for when, expected in (("early", early), ("late", late)):
        schedule = recompute(build("1f1b", p, m), None, when)
        assert simulate_lists(schedule, costs).makespan_s == simulate_arrays(schedule, costs).makespan_s == expected


def test_a_rank_that_recomputes_late_is_idle_because_of_later_stages():
    costs = StageCosts((StageCost(forward_s=1.0, backward_s=2.0),) * 8)
    for when, idle_s in (("early", 21.0), ("late", 28.0)):
        timeline = simulate_lists(recompute(build("1f1b", 8, 8), None, when), costs)
        causes = metrics(timeline).devices[0].idle_by_cause_s
        assert {cause: seconds for cause, seconds in causes if seconds} == {"downstream": idle_s}


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zbv"])
@pytest.mark.parametrize("when", ["early", "late"])
def test_both_engines_agree_with_a_plain_loop(name, when):
    schedule = recompute(build(name, 4, 8), None, when)
    require_runnable(schedule)
    cost = StageCost(forward_s=1.0, backward_s=2.0, backward_input_s=1.0, backward_weight_s=1.0)
    costs = StageCosts((cost,) * schedule.num_stages)
    rows = [[op for op in row if computes(op)] for row in schedule.ops]
    assert (
        simulate_lists(schedule, costs).makespan_s
        == simulate_arrays(schedule, costs).makespan_s
        == makespan(rows, schedule.num_stages)
    )


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipe", "pipedream"])
def test_a_file_keeps_whether_a_recompute_is_late(name):
    schedule = lower(recompute(build(name, 4, 8), None, "late"))
    assert "LATE_R" in to_json(schedule)
    assert from_json(to_json(schedule), "it").ops == schedule.ops


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_gradients_of_a_late_recompute_are_those_of_the_whole_model(name):
    schedule = any_schedule(name, 4, seed=4) or any_schedule(name, 2, seed=2)
    model = models.dropping(layers=schedule.num_stages)
    run = Local(without_steps(recompute(schedule, None, "late")), model, seed=0).run()
    assert_equal([p.grad for p in run.parameters], whole_gradients(model, schedule.num_microbatches))
