"""Counts and parameters that a builder cannot have are refused in one line with the nearest that work."""

import math
import re

import pytest

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import CATALOGUE, build
from tests.schedules.builder_rules import assert_one_line, refused

LEAST_1 = "expected an integer of at least 1"
REFUSED = [
    ("avgpipe", 2, 7, {}, ("got 7 micro-batches on 2 pipelines", "6 or 8")),
    ("avgpipe", 2, 4, {"advance": -1}, ("advance: got -1", "expected an integer of at least 0")),
    ("chimera", 5, 10, {}, ("got 5 ranks, expected an even number", "try 4 or 6")),
    ("chimera", 1, 4, {}, ("got 1 ranks", "try 2")),
    ("chimera", 4, 3, {}, ("got 3 micro-batches for 4 ranks, expected a multiple of 4", "try 4")),
    ("chimera", 4, 10, {}, ("got 10 micro-batches", "try 8 or 12")),
    ("data_parallel", 4, 3, {}, ("got 3 micro-batches for 4 ranks", "try 4")),
    ("dualpipe", 3, 8, {}, ("got 3 ranks", "try 4")),
    ("dualpipe", 4, 6, {}, ("got 6 micro-batches", "at least 8", "try 8")),
    ("dualpipe", 4, 9, {}, ("got 9 micro-batches", "even number", "try 10")),
    ("dualpipe", 1, 1, {}, ("got 1 ranks", "got 1 micro-batches", "try 2")),
    ("dualpipe_v", 3, 5, {}, ("got 5 micro-batches", "try 6")),
    ("gems", 1, 4, {}, ("got 1 ranks and 4 micro-batches", "try 2 and 4")),
    ("gems", 4, 1, {}, ("got 4 ranks and 1 micro-batches", "try 4 and 2")),
    ("hybrid", 3, 5, {"pipelined": 6}, ("got pipelined 6, expected 0 to 5", "try pipelined=2")),
    ("1f1b_rr", 4, 8, {"replicas": (2, 1)}, ("got replicas 2:1, 3 together, expected 4", "try replicas=2:1:1")),
    ("1f1b_rr", 3, 7, {"replicas": (2, 1)}, ("got 7 micro-batches for replicas 2:1", "multiple of 2", "try 6 or 8")),
    ("1f1b_rr", 5, 1, {"replicas": (2, 3)}, ("multiple of 6", "try 6")),
    ("1f1b_rr", 3, 6, {"replicas": (3, 0)}, ("got replicas 3:0, expected at least 1 of each",)),
    ("1f1b_rr", 3, 6, {"replicas": ()}, ("got replicas of no stage", "try 2:1")),
    ("pipedream_2bw", 4, 12, {"accumulate": 3}, ("accumulate 3 on 4 ranks", "at least 4", "try accumulate=4")),
    ("pipedream_2bw", 4, 10, {"accumulate": 4}, ("10 micro-batches", "multiple of the 4 per Step", "try 8 or 12")),
    ("pipedream_2bw", 4, 2, {}, ("2 micro-batches", "multiple of the 4 per Step", "try 4")),
    ("wpipe", 2, 7, {"accumulate": 3}, ("wpipe: got 7 micro-batches", "multiple of the 3", "try 6 or 9")),
    ("pipeoptim", 4, 10, {"extra": -1}, ("pipeoptim: got extra -1, expected 0 or more", "try extra=1")),
    ("zb_auto", 2, 4, {"i": math.nan}, ("zb_auto: i is nan", "at least 0")),
    ("zb_auto", 2, 4, {"limit": 0.5}, ("zb_auto: limit is 0.5", "at least 1")),
    ("zb_auto", 2, 4, {"kept": 1.5}, ("zb_auto: kept is 1.5", "at least 0 and at most 1")),
]


@pytest.mark.parametrize(("name", "p", "m", "settings", "said"), REFUSED)
def test_what_it_cannot_do_is_refused_with_what_it_can(name, p, m, settings, said):
    with refused(*said):
        build(name, p, m, **settings)


@pytest.mark.parametrize(
    ("name", "parameter"), [(entry.name, parameter) for entry in CATALOGUE.values() for parameter in entry.parameters]
)
def test_a_parameter_below_its_range_is_refused_by_its_name(name, parameter):
    with refused(parameter.name):
        build(name, 4, 8, **{parameter.name: (-1,) if parameter.takes == "integers" else -1})


@pytest.mark.parametrize("name", ["interleaved", "interleaved_zb"])
def test_unequal_rounds_are_refused_with_the_nearest_counts_that_work(name):
    def is_even(p, m):
        return m % max(1, m // p) == 0

    for p, m in ((p, m) for p in (2, 3, 8) for m in range(1, 40) if not is_even(p, m)):
        with pytest.raises(ScheduleError) as error:
            build(name, p, m)
        assert_one_line(str(error.value), f"{name}: got {m} micro-batches for {p} ranks")
        below, above = map(int, re.findall(r"\d+", str(error.value).split("try ")[1]))
        assert below == max(n for n in range(1, m) if is_even(p, n))
        assert above == min(n for n in range(m, 2 * m + p) if is_even(p, n))
