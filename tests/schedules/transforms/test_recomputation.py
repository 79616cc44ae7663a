import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders import CATALOGUE, build, build_generated
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.check import find_faults
from pipesched.schedules.lowering import lower
from pipesched.schedules.lowering.streamed_insertion import lowered_ranks
from pipesched.schedules.ops import Compute, Op, Phase, Step, backward, computes, forward
from pipesched.schedules.transforms import recomputation as module
from pipesched.schedules.transforms import recompute
from pipesched.schedules.weights.versions import live_versions
from tests.properties import examples
from tests.schedules.asynchronous_rules import agrees
from tests.schedules.brute_force import finishes
from tests.schedules.builder_rules import parts, refused
from tests.schedules.drawings import cells, drawn, is_in

DRAWING = """
    rank 0  F0 F1 F2 R0 .. .. B0 R1 .. B1 R2 .. B2
    rank 1  .. F0 F1 R0 .. B0 F2 R1 B1 R2 .. B2 ..
    rank 2  .. .. F0 R0 B0 F1 R1 B1 F2 R2 B2 .. ..
"""


def rebuild(stage: int, microbatch: int) -> Compute:
    return Compute(Phase.RECOMPUTE, stage, microbatch)


def one_rank(*ops: Op, num_stages: int = 1) -> Schedule:
    return make_schedule("x", num_stages, 2, [list(ops)])


def without(schedule: Schedule) -> tuple[tuple[Op, ...], ...]:
    return tuple(
        tuple(op for op in row if not (isinstance(op, Compute) and op.phase is Phase.RECOMPUTE)) for row in schedule.ops
    )


def test_it_runs_as_drawn():
    assert drawn(recompute(one_f_one_b(3, 3))) == cells(DRAWING)
    assert is_in(DRAWING, module.__doc__)


@examples(25)
@given(name=st.sampled_from(list(CATALOGUE)), p=st.integers(1, 4), m=st.integers(1, 12), is_lowered=st.booleans())
def test_over_any_schedule_it_adds_one_r_right_before_every_backward_and_nothing_else(name, p, m, is_lowered):
    try:
        plain = build(name, p, m)
    except ScheduleError:
        assume(False)
    plain = lower(plain) if is_lowered else plain
    schedule = recompute(plain)
    assert without(schedule) == plain.ops
    assert find_faults(schedule) == ()
    assert finishes(lower(schedule))
    for row in schedule.ops:
        for place, op in enumerate(row):
            due = [rebuild(c.stage, c.microbatch) for c in computes(op) if c.phase.value in "BI"]
            before = row[place - len(due) : place]
            assert [(c.phase, c.stage, c.microbatch) for c in before if isinstance(c, Compute)] == [
                (c.phase, c.stage, c.microbatch) for c in due
            ]
    every = [(k, i) for k in range(plain.num_stages) for i in range(plain.num_microbatches)]
    assert sorted((c.stage, c.microbatch) for row in schedule.ops for c in parts(row) if c.phase.value == "R") == every


@pytest.mark.parametrize(
    ("name", "p", "m"),
    [("gpipe", 3, 4), ("1f1b", 4, 6), ("interleaved", 2, 4), ("dualpipe", 4, 10), ("dualpipe_v", 2, 5)],
)
def test_it_is_the_same_before_and_after_lowering(name, p, m):
    """So every Recv of a gradient is posted before the R that runs while the gradient is on its way."""
    plain = build(name, p, m)
    assert recompute(lower(plain)) == lower(recompute(plain))


def test_what_has_an_r_already_gets_no_other():
    early = one_rank(forward(0, 0), rebuild(0, 0), forward(0, 1), backward(0, 0), backward(0, 1))
    assert [str(op) for op in recompute(early).ops[0]] == ["0F0", "0R0", "0F1", "0B0", "0R1", "0B1"]
    twice = recompute(recompute(one_f_one_b(3, 4)))
    assert twice.ops == recompute(one_f_one_b(3, 4)).ops


def test_only_the_stages_asked_for_recompute():
    schedule = recompute(one_f_one_b(3, 2), stages=[0, 2])
    assert [[str(op) for op in row if "R" in str(op)] for row in schedule.ops] == [["0R0", "0R1"], [], ["2R0", "2R1"]]
    assert without(schedule) == one_f_one_b(3, 2).ops


def test_it_reads_the_weights_of_its_backward():
    ahead = Compute(Phase.FORWARD, 0, 0, lookahead=2)
    back = Compute(Phase.BACKWARD, 0, 0, version=1, lookahead=3)
    schedule = recompute(make_schedule("guess", 1, 1, [[ahead, Step(0), back]]))
    assert [str(op) for op in schedule.ops[0]] == ["0F0@0+2", "0STEP", "0R0@1+3", "0B0@1+3"]


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.build_generated])
def test_no_scheme_needs_more_copies_for_it_or_loses_what_agrees(name):
    plain = build(name, 4, 24)
    schedule = recompute(plain)
    assert live_versions(schedule) == live_versions(plain)
    assert agrees(schedule) == agrees(plain)


@pytest.mark.parametrize("name", ["pipedream", "pipeoptim", "1f1b_rr"])
def test_over_lists_that_are_made_while_they_are_read_it_is_the_same(name):
    generated = recompute(build_generated(name, 3, 8), stages=[0, 1])
    assert generated.held() == recompute(build(name, 3, 8), stages=[0, 1])
    lowered = lowered_ranks(generated, range(generated.num_ranks)).values()
    assert tuple(map(tuple, lowered)) == lower(recompute(build(name, 3, 8), stages=[0, 1])).ops


def test_the_name_says_so():
    assert recompute(one_f_one_b(2, 2)).name == "1f1b+R"


def test_stages_that_there_are_not_are_refused_in_one_line():
    with refused("1f1b: recompute: got stage -1, 3", "expected 0 to 2"):
        recompute(one_f_one_b(3, 2), stages=[0, 3, -1])
