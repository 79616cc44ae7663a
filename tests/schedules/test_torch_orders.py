"""PyTorch as the oracle: our op orders are its own, on 100 random shapes each."""

import random
from collections import Counter

import pytest

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.dualpipe import dualpipe_v
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.builders.interleaved_zero_bubble import interleaved_zb
from pipesched.schedules.builders.looped_bfs import looped_bfs
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.zbv import zbv
from tests.schedules.torch_schedules import NUM_SHAPES, built, executed, listed, loop, shapes, vee, words_of


@pytest.mark.parametrize(("kind", "build"), [("ScheduleGPipe", gpipe), ("Schedule1F1B", one_f_one_b)])
def test_we_order_as_pytorch_executes(kind, build):
    """1F1B's constructor refuses m < p; what it would execute then is the same too."""
    for p, m in shapes(seed=1):
        assert words_of(build(p, m)) == executed(kind, p, m), f"p = {p}, m = {m}"


@pytest.mark.parametrize(
    ("kind", "build", "refuses"),
    [
        ("ScheduleLoopedBFS", looped_bfs, False),
        ("ScheduleInterleaved1F1B", interleaved, True),
        ("ScheduleInterleavedZeroBubble", interleaved_zb, True),
    ],
)
def test_with_several_stages_per_rank_we_order_as_pytorch_lists_and_refuse_what_it_refuses(kind, build, refuses):
    """Of 100 shapes that PyTorch accepts, and of those that it refuses on the way there."""
    chance = random.Random(2)
    seen: Counter[str] = Counter()
    while seen["accepted"] < 100:
        p, m, v = chance.randint(1, 8), chance.randint(1, 24), chance.randint(1, 4)
        try:
            order = built(kind, p, m, loop(p, v))
        except ValueError:  # it says: a multiple of the number of rounds
            seen["refused"] += 1
            with pytest.raises(ScheduleError):
                build(p, m, v)
        else:
            seen.update(accepted=1, uneven=int(m % p > 0), fewer=int(m < p))
            assert words_of(build(p, m, v)) == order, f"p = {p}, m = {m}, v = {v}"
    assert (seen["refused"] > 10) == refuses
    assert seen["uneven"] > 10
    assert seen["fewer"] > 10


@pytest.mark.parametrize(
    ("kind", "build", "least"),
    [("ScheduleZBVZeroBubble", zbv, lambda p: 1), ("ScheduleDualPipeV", dualpipe_v, lambda p: 2 * p)],
)
def test_in_a_v_we_order_as_pytorch_lists(kind, build, least):
    chance = random.Random(4)
    seen: Counter[str] = Counter()
    for _ in range(NUM_SHAPES):
        p = chance.randint(1, 8)
        m = least(p) + chance.randint(0, 23)
        seen.update(uneven=int(m % p > 0), fewer=int(m < 2 * p - 1))
        assert words_of(build(p, m)) == built(kind, p, m, vee(p)), f"p = {p}, m = {m}"
    assert seen["uneven"] > 10
    assert (seen["fewer"] > 10) == (build is zbv)


def test_pytorch_lists_gpipe_as_we_do():
    for p, m in shapes(seed=3):
        assert listed("ScheduleGPipe", p, m) == words_of(gpipe(p, m))


def test_pytorchs_listing_of_1f1b_numbers_the_last_ranks_forwards_one_too_high():
    """A defect of the listing (2.13), not of what is executed: when it is gone, compare the listing as well."""
    for p, m in [(1, 3), (2, 2), (4, 8)]:
        torch_order, order = listed("Schedule1F1B", p, m), words_of(one_f_one_b(p, m))
        assert torch_order[:-1] == order[:-1]
        last = p - 1
        assert [text for text in torch_order[last] if "F" in text] == [f"{last}F{i + 1}" for i in range(m)]
        assert [text for text in torch_order[last] if "B" in text] == [f"{last}B{i}" for i in range(m)]
