import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from pipesched.profiles.clusters import Link, flat, of_nodes
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Recv, Reduce, Step, gives, needs
from pipesched.simulator.analysis.critical_paths import Kind, critical_path, readable_path, shares
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import simulate_arrays
from tests.properties import examples
from tests.simulator.longest_path import longest_path as brute_force
from tests.strategies import random_costs

NAMES = ("gpipe", "1f1b", "interleaved", "zb_h1", "chimera", "data_parallel", "pipedream", "wpipe")


def known_costs(chance, num_stages):
    """Draw costs that the oracle knows: every Step takes time, and nothing is copied, predicted or overlapped."""
    stages = random_costs(chance, num_stages).stages
    return StageCosts(tuple(replace(s, step_s=chance.uniform(0.1, 1), copy_s=0.0, predict_s=None) for s in stages))


def comes_before(first, second, num_stages):
    """Whether the op of `second` cannot start before that of `first` is over, or both are posts of one rank."""
    a, b = first.op, second.op
    if isinstance(a, Recv) and isinstance(b, Compute):
        return first.rank == second.rank and a.message in needs(b, num_stages)
    if isinstance(a, Compute) and isinstance(b, Recv):  # made the message, or reached the post on either side
        return first.rank in (second.rank, b.peer) or gives(a) == b.message
    if isinstance(a, Recv) and isinstance(b, Recv):
        return (first.rank, a.peer) == (second.rank, b.peer)
    if isinstance(b, Reduce) or isinstance(a, Reduce):
        return True
    return first.rank == second.rank


def by_the_table(path, costs, link, members):
    """Add up what the costs, not the Timeline, say of each piece."""
    seconds = []
    for piece, following in zip(path, [*path[1:], None], strict=True):
        op = piece.span.op
        if isinstance(op, Compute):
            seconds.append(costs.seconds(op))
        elif isinstance(op, Step):
            seconds.append(costs.stages[op.stage].step_s)
        elif isinstance(op, Reduce):
            part = costs.stages[op.stage].weight_bytes / members[op.stage]
            latency_s = 0.0 if isinstance(following.span.op, Recv | Reduce) else link.latency_s
            seconds.append(2 * (members[op.stage] - 1) * (part / link.bandwidth_bytes_per_s + latency_s))
        else:
            seconds.append(costs.message_bytes(op.message) / link.bandwidth_bytes_per_s)
            if not isinstance(
                following.span.op, Recv | Reduce
            ):  # else only its bytes were in the way, it went on travelling
                seconds.append(link.latency_s)
    return math.fsum(seconds)


@examples(40)
@given(name=st.sampled_from(NAMES), p=st.integers(1, 5), m=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_the_chain_is_a_longest_path_of_the_lists(name, p, m, seed):
    chance = random.Random(seed)
    try:
        schedule = build(name, p, m)
    except ScheduleError:
        reject()
    costs = known_costs(chance, schedule.num_stages)
    link = Link(chance.choice([0.0, 0.3]), chance.choice([1.0, 50.0, math.inf]))
    lowered = lower(schedule)
    timeline = simulate_arrays(lowered, costs, flat(schedule.num_ranks, link))
    path = critical_path(timeline)
    members = {stage: sum(Reduce(stage) in row for row in schedule.ops) for stage in range(schedule.num_stages)}
    assert by_the_table(path, costs, link, members) == pytest.approx(brute_force(schedule, costs, link), rel=1e-9)
    assert all(comes_before(a.span, b.span, schedule.num_stages) for a, b in pairwise(path))


@examples(40)
@given(name=st.sampled_from(NAMES), m=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_the_pieces_touch_and_reach_from_start_to_end_also_where_nics_are_shared(name, m, seed):
    chance = random.Random(seed)
    try:
        schedule = build(name, 4, m)
    except ScheduleError:
        reject()
    node = replace(flat(2, Link(0.1, 9.0)), inter=Link(0.2, 5.0), nics=((0, 1),))
    timeline = simulate_lists(schedule, known_costs(chance, schedule.num_stages), of_nodes(node, 2))
    path = critical_path(timeline)
    assert path[0].start_s == timeline.start_s
    assert path[-1].end_s == timeline.start_s + timeline.makespan_s
    assert all(a.end_s == b.start_s for a, b in pairwise(path))
    assert math.fsum(piece.seconds for piece in path) == pytest.approx(timeline.makespan_s, rel=1e-12)
    assert math.fsum(shares(path).values()) == pytest.approx(timeline.makespan_s, rel=1e-12)


def test_1f1b_with_equal_stages_is_filled_worked_off_and_drained():
    timeline = simulate_lists(build("1f1b", 2, 3), uniform(2, 1.0, 2.0))
    path = critical_path(timeline)
    assert [(p.span.rank, str(p.span.op)) for p in path if p.seconds] == [
        (0, "0F0"), (1, "1F0"), (1, "1B0"), (1, "1F1"), (1, "1B1"), (1, "1F2"), (1, "1B2"), (0, "0B2"),
    ]  # fmt: skip
    assert shares(path) == {Kind.BACKWARD: 8.0, Kind.FORWARD: 4.0}
    assert readable_path(path) == [
        "rank 0: forward 1 s", "rank 1: 3 backwards 6 s, 3 forwards 3 s", "rank 0: backward 2 s",
    ]  # fmt: skip


def test_a_slow_link_is_a_message_of_the_path():
    costs = replace(uniform(2, 1.0, 2.0), stages=(replace(uniform(1, 1.0, 2.0).stages[0], output_bytes=10),) * 2)
    path = critical_path(simulate_lists(build("1f1b", 2, 1), costs, flat(2, Link(0.5, 5.0))))
    assert readable_path(path) == [
        "rank 0: forward 1 s", "message 2.5 s 0->1", "rank 1: backward 2 s, forward 1 s", "message 2.5 s 1->0",
        "rank 0: backward 2 s",
    ]  # fmt: skip
    assert shares(path)[Kind.MESSAGE] == 5.0


class Counted(float):
    """A time that counts how often it is compared or added to."""

    uses = 0

    def __lt__(self, other):
        Counted.uses += 1
        return float(self) < float(other)

    def __le__(self, other):
        Counted.uses += 1
        return float(self) <= float(other)

    def __add__(self, other):
        Counted.uses += 1
        return float(self) + float(other)


def uses_of_a_path(num_microbatches):
    costs = StageCosts((StageCost(1.0, 2.0, output_bytes=100),) * 4)
    timeline = simulate_lists(build("1f1b", 4, num_microbatches), costs, flat(4, Link(0.0, 10.0)))
    spans = tuple(replace(s, start_s=Counted(s.start_s), end_s=Counted(s.end_s)) for s in timeline.spans)
    Counted.uses = 0
    critical_path(replace(timeline, spans=spans))
    return Counted.uses


def test_twice_as_many_messages_on_the_path_take_about_twice_as_long_to_follow():
    assert uses_of_a_path(200) < 2.5 * uses_of_a_path(100)
