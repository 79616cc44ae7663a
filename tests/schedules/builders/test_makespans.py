"""Closed forms of the makespan where every computation of a chunk takes one slot and messages take none."""

import pytest

from pipesched.schedules.builders import build
from tests.schedules.builder_rules import finish_times, parts

ROUNDS = (1, 2, 3)
FORMS = [
    ("1f1b", {}, lambda p, m: 2 * m + 2 * (p - 1), [(p, p * r) for p in (1, 2, 5, 16) for r in ROUNDS]),
    ("zb_h1", {}, lambda p, m: 3 * m + p - 1, [(p, 2 * p * r) for p in (1, 2, 5, 16) for r in ROUNDS]),
    ("chimera", {}, lambda p, m: 2 * m + p - 2, [(p, p * r) for p in range(2, 17, 2) for r in (*ROUNDS, 64 // p)]),
    ("gems", {}, lambda p, m: (m - 1) * (p + 1) + 2 * p, [(p, m) for p in range(2, 17) for m in (2, 3, 8)]),
    *(
        (
            "hanayo",
            {"waves": waves},
            lambda p, m, waves=waves: 4 * waves * m + 2 * (p - 1),
            [(p, p * r) for p in (1, 2, 3, 7, 16) for r in ROUNDS],
        )
        for waves in (1, 2, 4)
    ),
    *(
        (name, {"num_chunks": v}, lambda p, m, v=v, work=work: work * (m * v) + (4 - work) * (p - 1), sizes)
        for name, work, sizes in [
            ("interleaved", 2, [(2, 4), (3, 3), (4, 12), (8, 16)]),
            ("looped_bfs", 2, [(2, 2), (4, 8), (3, 7), (5, 9)]),
            ("interleaved_zb", 3, [(2, 4), (3, 3), (4, 12), (8, 16)]),
        ]
        for v in (2, 3, 4)
    ),
]
"""Name, settings, slots by (p, m), and the (p, m) that are tried."""


@pytest.mark.parametrize(("name", "settings", "slots", "sizes"), FORMS)
def test_the_makespan_is_that_of_the_paper(name, settings, slots, sizes):
    for p, m in sizes:
        schedule = build(name, p, m, **settings)
        over = finish_times(schedule)
        assert max(over.values()) == slots(p, m), (p, m)
        assert len(over) == sum(len(parts(row)) for row in schedule.ops)


def test_a_backward_of_twice_the_time_makes_chimeras_other_bubble_with_one_unit():
    for p in (2, 4, 6, 16):
        makespan = max(finish_times(build("chimera", p, p), {"F": 1.0, "B": 2.0}).values())
        assert (makespan - 3 * p) / makespan == pytest.approx((p - 2) / (1.5 * p + p - 2), rel=1e-12)
