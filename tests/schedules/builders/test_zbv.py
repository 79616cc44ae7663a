import random

import pytest

from pipesched.schedules.builders.zbv import zbv
from tests.schedules.builder_rules import finish_times, most_in_flight, parts
from tests.schedules.torch_schedules import NUM_SHAPES, built, vee, words_of


def test_it_orders_as_pytorch_lists():
    chance = random.Random(4)
    fewer = 0
    for _ in range(NUM_SHAPES):
        p, m = chance.randint(1, 8), chance.randint(1, 24)
        fewer += m < 2 * p - 1
        assert words_of(zbv(p, m)) == built("ScheduleZBVZeroBubble", p, m, vee(p)), f"p = {p}, m = {m}"
    assert 10 < fewer < 90


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 16])
def test_with_equal_chunk_times_no_rank_is_idle_between_its_ops_and_none_holds_more_than_2_p_chunks(p):
    for m in (2 * p - 1, 2 * p, 4 * p):
        schedule = zbv(p, m)
        over = finish_times(schedule)
        assert max(over.values()) == 6 * m + p - 1
        for rank, row in enumerate(schedule.ops):
            assert [over[op] for op in parts(row)] == list(range(rank + 1, rank + 6 * m + 1))
        assert most_in_flight(schedule) == [2 * p] * p
