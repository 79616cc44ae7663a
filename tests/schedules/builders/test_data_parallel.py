import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import data_parallel as module
from pipesched.schedules.builders.data_parallel import data_parallel
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Send
from tests.properties import examples
from tests.schedules.builder_rules import RANKS, assert_one_line, assert_sound, most_in_flight

DRAWING = """
    rank 0  F0 B0 F3 B3 F6 B6  Reduce Step
    rank 1  F1 B1 F4 B4        Reduce Step
    rank 2  F2 B2 F5 B5        Reduce Step
"""


def test_it_runs_as_drawn():
    names = {"0REDUCE_GRAD": "Reduce", "0STEP": "Step"}
    rows = [[names.get(str(op), str(op)[1:]) for op in row] for row in data_parallel(3, 7).ops]
    assert rows == [line.split()[2:] for line in DRAWING.strip().splitlines()]
    assert all(line in module.__doc__ for line in DRAWING.splitlines())


@examples(40)
@given(RANKS, st.integers(0, 12))
def test_it_is_sound_holds_one_microbatch_and_sends_nothing(p, more):
    schedule = data_parallel(p, p + more)
    assert_sound(schedule, 1, p + more)
    assert most_in_flight(schedule) == [1] * p
    assert not any(isinstance(op, Send) for row in lower(schedule).ops for op in row)


def test_a_rank_without_a_microbatch_is_refused():
    with pytest.raises(ScheduleError) as error:
        data_parallel(4, 3)
    assert_one_line(str(error.value), "got 3 micro-batches for 4 ranks", "try 4")
