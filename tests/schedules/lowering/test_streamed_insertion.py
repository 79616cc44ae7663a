import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import Schedule, make_generated_schedule, make_schedule, repeat
from pipesched.schedules.builders import CATALOGUE, build, build_generated
from pipesched.schedules.builders.one_f_one_b_rr import generated_one_f_one_b_rr
from pipesched.schedules.lowering import lower
from pipesched.schedules.lowering.streamed_insertion import lowered_ranks
from pipesched.schedules.ops import backward, forward
from tests.properties import examples
from tests.schedules.builder_rules import refused
from tests.schedules.builders.test_one_f_one_b_rr import layouts
from tests.schedules.hand_schedules import replicated, v_shaped

ASYNCHRONOUS = [name for name, entry in CATALOGUE.items() if entry.traits.is_asynchronous]


def assert_lowered_alike(generated: Schedule) -> None:
    expected = lower(generated.held())
    together = lowered_ranks(generated, range(generated.num_ranks))
    for rank in reversed(range(generated.num_ranks)):
        assert tuple(together[rank]) == tuple(lowered_ranks(generated, (rank,))[rank]) == expected.ops[rank]


@examples(25)
@given(st.sampled_from(ASYNCHRONOUS), st.integers(1, 6), st.integers(1, 3))
def test_asynchronous_lists_are_lowered_as_those_in_memory(name, p, periods):
    assert_lowered_alike(build_generated(name, p, 2 * p * periods))


@examples(25)
@given(layouts())
def test_replicas_that_meet_at_a_reduce_are_lowered_as_in_memory(layout):
    replicas, m = layout
    assert_lowered_alike(generated_one_f_one_b_rr(sum(replicas), m, replicas))


@pytest.mark.parametrize("name", CATALOGUE)
def test_repeated_batches_are_lowered_as_in_memory(name):
    assert_lowered_alike(repeat(build(name, 4, 8), 2))


@pytest.mark.parametrize("batch", [replicated(), v_shaped()], ids=lambda batch: batch.name)
def test_pipelines_side_by_side_and_turns_are_lowered_as_in_memory(batch):
    assert_lowered_alike(repeat(batch, 3))


def test_what_is_lowered_stays_as_it_is():
    generated = repeat(lower(build("1f1b", 2, 4)), 2)
    assert tuple(lowered_ranks(generated, (1,))[1]) == generated.held().ops[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b_rr", "gpipe"])
def test_a_list_without_an_end_is_lowered_in_little_memory(name):
    generated = repeat(build(name, 4, 8), 10**9) if name == "gpipe" else build_generated(name, 4, 10**9)
    for rank in (0, 3):
        ops = lowered_ranks(generated, (rank,))[rank]
        tracemalloc.start()
        assert sum(1 for _ in islice(ops, 4000)) == 4000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 200_000, f"rank {rank}: {peak} bytes, as if the ops were kept"


def test_ranks_read_in_turn_are_held_no_longer_than_needed():
    lists = lowered_ranks(build_generated("pipedream", 3, 10**9), range(3))
    longest = {0: 6, 1: 8, 2: 6}  # ops of a steady period: F, B, Step, and Sends and Recvs
    tracemalloc.start()
    for _ in range(300):
        for rank, count in longest.items():
            list(islice(lists[rank], count - 1))
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_lists_that_cannot_go_on_are_refused_where_they_stop():
    rows = [[backward(0, 0), forward(0, 0)], [forward(1, 0), backward(1, 0)]]
    stuck = make_generated_schedule("stuck", 2, 1, [lambda row=row: iter(row) for row in rows])
    assert stuck.held() == make_schedule("stuck", 2, 1, rows)
    with refused("stuck: cannot be lowered: rank 0 waits forever at op 0 (0B0)"):
        list(lowered_ranks(stuck, (1,))[1])
