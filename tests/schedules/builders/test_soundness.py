"""Every schedule of the catalogue at any counts: sound, its stages where they belong, its micro-batches in flight."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.ops import stages_of
from tests.properties import examples
from tests.schedules.asynchronous_rules import assert_stepped
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_ordered, assert_runs, most_in_flight
from tests.schedules.builders.test_asynchronous import periods
from tests.schedules.builders.test_one_f_one_b_rr import layouts

Stages = list[tuple[int, ...]]
"""The stages of each rank."""


class Case(NamedTuple):
    """A drawn schedule with its expected stages and micro-batches in flight on each rank."""

    counts: st.SearchStrategy[dict]
    """Arguments of `build`, p and m among them."""
    stages: Callable[..., Stages]
    in_flight: Callable[..., list[int]] | None
    """Functions of the drawn counts; None: a test of the builder has the closed form."""


def counts(**drawn: st.SearchStrategy) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries({"p": RANKS, "m": MICROBATCHES} | drawn)


def one_each(p: int, **_) -> Stages:
    return [(k,) for k in range(p)]


def looped(p: int, num_chunks: int, **_) -> Stages:
    return [tuple(range(k, p * num_chunks, p)) for k in range(p)]


def vee(p: int, **_) -> Stages:
    return [(k, 2 * p - 1 - k) for k in range(p)]


def both_ways(p: int, **_) -> Stages:
    return [tuple(sorted({k, p - 1 - k})) for k in range(p)]


def replicated(p: int, replicas: tuple[int, ...], **_) -> Stages:
    return [(stage,) for stage, number in enumerate(replicas) for _ in range(number)]


def depth(p: int, m: int, **_) -> list[int]:
    return [min(m, p - k) for k in range(p)]


def advanced(p: int, m: int, advance: int, **_) -> list[int]:
    return [min(m, p - 1 - k + advance + 1) for k in range(p - 1)] + [1]


def twice_as_far(p: int, m: int, **_) -> list[int]:
    return [min(m, 2 * (p - 1 - k) + 1) for k in range(p)]


def megatrons(p: int, m: int, num_chunks: int) -> list[int]:
    """Megatron-LM, get_num_microbatches: (p - k - 1) * 2 + (v - 1) * size of a round ahead of the first backward."""
    size = m // max(1, m // p)
    return [min(m * num_chunks, 2 * (p - k - 1) + (num_chunks - 1) * size + 1) for k in range(p)]


def rounds_with_chunks() -> st.SearchStrategy[dict]:
    """Counts with chunks whose rounds are of equal size."""
    return counts(num_chunks=st.integers(1, 4)).filter(lambda drawn: drawn["m"] % max(1, drawn["m"] // drawn["p"]) == 0)


def shares(**drawn: st.SearchStrategy) -> st.SearchStrategy[dict]:
    """Counts of which each pipeline gets an equal share."""
    numbers = st.tuples(st.integers(1, 4), st.integers(1, 8), st.fixed_dictionaries({"p": st.integers(1, 6)} | drawn))
    return numbers.map(lambda drawn: {"m": drawn[0] * drawn[1], "pipelines": drawn[0], **drawn[2]})


PERIODS = periods().map(lambda drawn: {"p": drawn[0], "accumulate": drawn[1], "m": drawn[1] * drawn[2]})
EVEN = st.integers(1, 4).map(lambda half: 2 * half)
COSTS = dict.fromkeys("fiwc", st.integers(0, 9).map(float))
CASES = {
    "naive": Case(counts(), one_each, lambda p, m: [1] * p),
    "gpipe": Case(counts(), one_each, lambda p, m: [m] * p),
    "1f1b": Case(counts(), one_each, depth),
    "1f1b_afp": Case(counts(advance=st.integers(0, 30)), one_each, advanced),
    "avgpipe": Case(
        shares(advance=st.integers(0, 9)),
        lambda p, pipelines, **_: one_each(p) * pipelines,
        lambda p, m, pipelines, advance: advanced(p, m // pipelines, advance) * pipelines,
    ),
    "interleaved": Case(rounds_with_chunks(), looped, megatrons),
    "looped_bfs": Case(counts(num_chunks=st.integers(1, 4)), looped, lambda p, m, num_chunks: [m * num_chunks] * p),
    "zb_h1": Case(counts(), one_each, lambda p, m: [min(m, p)] * p),
    "zb_h2": Case(counts(), one_each, lambda p, m: [min(m, 2 * p - 1)] * p),
    "zb_auto": Case(counts(limit=st.integers(1, 20), **COSTS), one_each, None),
    "interleaved_zb": Case(
        rounds_with_chunks(),
        looped,
        lambda p, m, num_chunks: [min(m * num_chunks, (num_chunks - 1) * (m // max(1, m // p)) + p)] * p,
    ),
    "dualpipe": Case(
        counts(p=EVEN, m=st.integers(8, 16).map(lambda half: 2 * half)), both_ways, lambda p, m: [p + 1] * p
    ),
    "dualpipe_v": Case(counts(m=st.integers(16, 24)), vee, lambda p, m: [2 * p + 1] * p),
    "data_parallel": Case(counts(m=st.integers(8, 20)), lambda p, m: [(0,)] * p, lambda p, m: [1] * p),
    "zbv": Case(counts(), vee, None),
    "v_half": Case(counts(), vee, None),
    "v_min": Case(counts(), vee, None),
    "chimera": Case(
        st.tuples(EVEN, st.integers(1, 3)).map(lambda drawn: {"p": drawn[0], "m": drawn[0] * drawn[1]}),
        both_ways,
        lambda p, m: [p // 2 + 1 + min(k, p - 1 - k) for k in range(p)],
    ),
    "gems": Case(counts(p=st.integers(2, 8), m=st.integers(2, 16)), both_ways, lambda p, m: [1] * p),
    "hanayo": Case(
        counts(p=st.integers(1, 6), m=st.integers(1, 13), waves=st.integers(1, 3)),
        lambda p, m, waves: [tuple(sorted(2 * p * w + s for w in range(waves) for s in row)) for row in vee(p)],
        None,
    ),
    "pipedream": Case(counts(), one_each, depth),
    "1f1b_rr": Case(
        layouts().map(lambda drawn: {"p": sum(drawn[0]), "m": drawn[1], "replicas": drawn[0]}), replicated, None
    ),
    "pipedream_2bw": Case(PERIODS, one_each, depth),
    "wpipe": Case(PERIODS, lambda p, **_: [(k, p + k) for k in range(p)], None),
    "vanilla_1f1b": Case(counts(), one_each, depth),
    "stale_weights": Case(counts(), one_each, twice_as_far),
    "hybrid": Case(
        counts(pipelined=st.integers(0, 24)).map(lambda drawn: drawn | {"pipelined": min(drawn.values())}),
        one_each,
        lambda p, m, pipelined: [max(1, min(pipelined, 2 * (p - 1 - k) + 1)) for k in range(p)],
    ),
    "spectrain": Case(counts(), one_each, depth),
    "xpipe": Case(counts(), one_each, depth),
    "pipeoptim": Case(counts(extra=st.integers(0, 2)), one_each, depth),
}


def test_every_schedule_has_a_case():
    assert list(CASES) == list(CATALOGUE)


@pytest.mark.parametrize("name", CASES)
@examples(20)
@given(st.data())
def test_it_is_sound_with_its_stages_and_its_microbatches_in_flight(name, data):
    case = CASES[name]
    drawn = data.draw(case.counts)
    p, m = drawn["p"], drawn["m"]
    schedule = build(name, p, m, **{key: value for key, value in drawn.items() if key not in "pm"})
    stages = case.stages(**drawn)
    assert [stages_of(row) for row in schedule.ops] == stages
    assert (schedule.num_stages, schedule.num_microbatches) == (1 + max(map(max, stages)), m)
    assert_runs(schedule)
    if CATALOGUE[name].traits.is_asynchronous:
        assert_stepped(schedule, drawn.get("accumulate", 1))
    else:
        assert_ordered(schedule)
    if case.in_flight is not None:
        assert most_in_flight(schedule) == case.in_flight(**drawn)
