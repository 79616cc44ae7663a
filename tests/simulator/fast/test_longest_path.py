import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import uniform
from pipesched.schedules import Recv, ScheduleError, computes, make_schedule, needs
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.formats.op_text import parse_op_with_peer
from pipesched.schedules.lowering import lower, lower_for_torch
from pipesched.schedules.transforms import recompute
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import is_unshared, longest_path
from tests.schedules.edits import mutant, reduced_early
from tests.strategies import random_cluster, random_costs

UNSHARED = [name for name, entry in CATALOGUE.items() if not entry.traits.averages]


def received_late(schedule):
    """Post each Recv only right before the op that needs its message, so that it holds its transfer back."""
    rows = []
    for row in schedule.ops:
        recvs = {op.message: op for op in row if isinstance(op, Recv)}
        late = []
        for op in row:
            wanted = [m for part in computes(op) for m in needs(part, schedule.num_stages) if m in recvs]
            late += [recvs.pop(message) for message in wanted]
            late += [] if isinstance(op, Recv) else [op]
        rows.append(late)
    return make_schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, rows)


def assert_same(schedule, costs, cluster):
    """Hold every span of the one to that of the other, or find that both refuse; return which of them it was."""
    try:
        expected = simulate_lists(schedule, costs, cluster)
    except (ScheduleError, SimulationError):
        with pytest.raises((ScheduleError, SimulationError)):
            longest_path(schedule, costs, cluster)
        return "wrong lists"
    if not is_unshared(schedule, cluster):
        with pytest.raises(SimulationError, match="links for the reductions alone"):
            longest_path(schedule, costs, cluster)
        return "shared links"
    timeline = longest_path(schedule, costs, cluster)
    assert [(s.rank, s.op) for s in timeline.spans] == [(s.rank, s.op) for s in expected.spans]
    for span, expected_span in zip(timeline.spans, expected.spans, strict=True):
        for field in ("posted_s", "start_s", "end_s"):
            assert getattr(span, field) == pytest.approx(getattr(expected_span, field), rel=1e-9, abs=1e-9), span
    assert replace(timeline, spans=()) == replace(expected, spans=())
    return "same"


def test_it_equals_simpy_on_schedules_of_the_catalogue_whatever_they_cost():
    outcomes = Counter()

    @settings(deadline=None, max_examples=150)
    @given(
        name=st.sampled_from(UNSHARED),
        p=st.integers(1, 6),
        m=st.integers(1, 10),
        lowering=st.sampled_from(
            [
                lower,
                lower_for_torch,
                lambda schedule: received_late(lower(schedule)),
                lambda schedule: lower(reduced_early(schedule)),
            ]
        ),
        is_recomputed=st.booleans(),
        seed=st.integers(0, 10**6),
    )
    def hold(name, p, m, lowering, is_recomputed, seed):
        chance = random.Random(seed)
        try:
            schedule = build(name, p, m)
            schedule = recompute(schedule) if is_recomputed else schedule
        except ScheduleError:  # these counts are not for this schedule, or it cannot be recomputed
            reject()
        costs = random_costs(chance, schedule.num_stages)
        outcomes[assert_same(lowering(schedule), costs, random_cluster(chance, schedule.num_devices))] += 1

    hold()
    assert outcomes["same"] >= 50, outcomes


def test_it_equals_simpy_on_lists_changed_at_random_and_refuses_those_that_simpy_refuses():
    outcomes = Counter()

    @settings(deadline=None, max_examples=150)
    @given(seed=st.integers(0, 10**6))
    def hold(seed):
        chance = random.Random(seed)
        original, changed = mutant(seed)
        assume(original.num_devices == original.num_ranks)
        costs, cluster = random_costs(chance, changed.num_stages), random_cluster(chance, changed.num_ranks)
        outcomes[assert_same(changed, costs, cluster)] += 1

    hold()
    assert min(outcomes["same"], outcomes["wrong lists"]) >= 15, outcomes


def test_without_a_cluster_messages_take_no_time():
    schedule = build("1f1b", 4, 8)
    costs = uniform(4, 1.0, 2.0)
    assert longest_path(schedule, costs).makespan_s == simulate_lists(schedule, costs).makespan_s == 33.0


def test_ranks_that_share_a_device_are_refused_in_one_line():
    schedule = build("avgpipe", 2, 4)
    assert not is_unshared(schedule, flat(2))
    with pytest.raises(SimulationError) as error:
        longest_path(schedule, uniform(2, 1.0, 1.0))
    assert str(error.value) == (
        "avgpipe: got 4 ranks on 2 devices and 0 shared NICs, expected a device for each rank, no such NIC, and links "
        "for the reductions alone; try simulate"
    )


def test_devices_that_share_a_nic_are_refused():
    cluster = replace(flat(2), nics=((0, 1),))
    assert not is_unshared(build("1f1b", 2, 4), cluster)
    with pytest.raises(SimulationError, match="1 shared NICs"):
        longest_path(build("1f1b", 2, 4), uniform(2, 1.0, 1.0), cluster)


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        ([["0F0", "0SEND_F0>1", "0B0"], ["1F0", "1B0"]], ScheduleError, "waits forever for activation 0 of stage 0"),
        (
            [["0RECV_B0<1", "0F0", "0B0"], ["1RECV_F0<0", "1F0", "1B0"]],
            SimulationError,
            "deadlock: rank 0 waits",
        ),
        ([["0F0", "0SEND_F0>1"], []], SimulationError, "only one side posts 0SEND_F0"),
    ],
)
def test_lists_that_cannot_come_to_their_end_are_refused(rows, error, text):
    ops = [[parse_op_with_peer(cell) for cell in row] for row in rows]
    with pytest.raises(error) as caught:
        longest_path(make_schedule("bad", 2, 1, ops), uniform(2, 1.0, 1.0))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
