import tracemalloc
from dataclasses import replace

import pytest

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.builders.one_f_one_b import one_f_one_b, one_f_one_b_afp
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.lowering import lower
from pipesched.schedules.lowering.streamed_insertion import ReduceClocks
from pipesched.schedules.ops import Op, Recv, Reduce, Send, Step, backward, forward
from pipesched.schedules.transforms import compute_only
from tests.schedules.brute_force import carried, made, wanted
from tests.schedules.builder_rules import refused
from tests.schedules.hand_schedules import mixed_backwards, replicated, v_shaped

SAMPLES = [
    gpipe(3, 4),
    one_f_one_b(4, 6),
    one_f_one_b(4, 2),
    one_f_one_b_afp(3, 6, advance=2),
    interleaved(2, 4, 2),
    interleaved(3, 4, 3),
    pipedream(4, 7),
    v_shaped(),
    replicated(),
]
NAMES = [f"{s.name}-{s.num_stages}-{s.num_microbatches}" for s in SAMPLES]
samples = pytest.mark.parametrize("schedule", SAMPLES, ids=NAMES)


@samples
def test_a_send_follows_the_op_that_makes_its_message_at_once(schedule):
    for row in lower(schedule).ops:
        last: Op | None = None
        for op in row:
            if isinstance(op, Send):
                assert last is not None
                assert carried(op) in made(last)
            elif not isinstance(op, Recv):
                last = op


@samples
def test_nothing_else_changes_and_nothing_at_all_the_second_time(schedule):
    lowered = lower(schedule)
    assert lowered.is_lowered
    assert compute_only(lowered) == compute_only(schedule) == schedule
    assert lowered.rank_to_device == schedule.rank_to_device
    assert lower(lowered) == lowered


@pytest.mark.parametrize("schedule", SAMPLES[:-1], ids=NAMES[:-1])  # a Reduce is not in this test's rule
def test_a_receive_stands_behind_just_those_ops_that_the_message_depends_on(schedule):
    """So it could be posted no earlier with effect, and a later one might come too late."""
    before = _ancestors(schedule)
    makers = {thing: (r, n) for r, row in enumerate(schedule.ops) for n, op in enumerate(row) for thing in made(op)}
    for rank, row in enumerate(lower(schedule).ops):
        place = 0
        for op in row:
            if isinstance(op, Recv):
                needed = [n for r, n in before[makers[carried(op)]] if r == rank]
                assert place == max(needed, default=-1) + 1, f"rank {rank}: {op}"
            elif not isinstance(op, Send):
                place += 1


def _ancestors(schedule: Schedule) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """Return all places that must be over before each place, by adding them up until nothing changes."""
    places = [(r, n) for r, row in enumerate(schedule.ops) for n in range(len(row))]
    makers = {thing: (r, n) for r, n in places for thing in made(schedule.ops[r][n])}
    direct = {
        (r, n): {(r, n - 1)} - {(r, -1)} | {makers[thing] for thing in wanted(schedule.ops[r][n], schedule.num_stages)}
        for r, n in places
    }
    ancestors: dict[tuple[int, int], set[tuple[int, int]]] = {place: set() for place in places}
    changed = True
    while changed:
        changed = False
        for place in places:
            now = direct[place].union(*(ancestors[other] for other in direct[place]))
            changed |= now != ancestors[place]
            ancestors[place] = now
    return ancestors


def test_one_rank_has_nothing_to_send():
    for schedule in (gpipe(1, 3), interleaved(1, 4, 3), mixed_backwards()):
        assert lower(schedule) == replace(schedule, is_lowered=True)


def test_an_op_known_over_through_a_reduce_counts_as_one_that_the_message_depends_on():
    rows = [
        [forward(0, 0), Reduce(0), Step(0), forward(0, 2), backward(0, 0), backward(0, 2)],
        [forward(0, 1), Reduce(0), Step(0), forward(1, 2), backward(1, 2), backward(0, 1)],
        [forward(1, 0), backward(1, 0), forward(1, 1), backward(1, 1)],
    ]
    row = lower(make_schedule("meeting", 2, 3, rows)).ops[1]
    behind = [op for op in row if not isinstance(op, Send)]
    recv = next(n for n, op in enumerate(behind) if isinstance(op, Recv) and op.message.microbatch == 2)
    assert behind[recv - 1] == Reduce(0)
    assert behind[recv + 1 : recv + 3] == [Step(0), forward(1, 2)]


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ([[backward(0, 0), forward(0, 0)], [forward(1, 0), backward(1, 0)]], "rank 0 op 0: 0B0 waits forever"),
        ([[forward(0, 0), Step(0), backward(0, 0)], [forward(1, 0)]], "rank 0 op 2: 0B0 waits forever"),
        ([[backward(0, 0)], [forward(0, 0), forward(1, 0), backward(1, 0)]], "rank 0 op 0: 0B0 waits forever"),
    ],
)
def test_lists_that_cannot_finish_are_refused_with_rank_and_op(rows, place):
    with refused("stuck", place):
        lower(make_schedule("stuck", 2, 1, rows))


@pytest.mark.slow
def test_lowering_keeps_the_clocks_of_open_messages_alone():
    schedule = one_f_one_b(64, 128)
    tracemalloc.start()
    lowered = lower(schedule)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    num_messages = sum(isinstance(op, Send) for row in lowered.ops for op in row)
    clock_bytes = 8 * schedule.num_ranks * num_messages
    assert peak < 1.2 * clock_bytes, "with a clock for every message, all else comes on top"


def test_clocks_of_reduces_are_kept_until_the_next_one_of_all_replicas():
    clocks = ReduceClocks({0: 2})
    for number in range(1, 50):
        first_clock, other = [number, 0], [0, number]
        clocks.tell(0, 0, first_clock)
        assert not clocks.learn(0, 0, first_clock)
        clocks.tell(1, 0, other)
        for clock in (first_clock, other):
            for rank in range(2):
                assert clocks.learn(rank, 0, clock)
            assert clock == [number, number]
    assert len(clocks) == 1


def test_lists_whose_clocks_would_not_fit_are_refused_with_the_number_that_would(monkeypatch):
    monkeypatch.setattr("pipesched.schedules.lowering.insertion._MAX_CLOCKS", 20)
    with pytest.raises(ScheduleError, match=r"^1f1b: .*got 260 ops on 4 ranks, expected at most 100; try 12 micro-"):
        lower(one_f_one_b(4, 32))
    with pytest.raises(ScheduleError, match=r"expected at most 66; try 4 ranks"):
        lower(one_f_one_b(6, 1))
    assert lower(one_f_one_b(4, 12)).is_lowered
