from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.builders.avgpipe import avgpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b_afp
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Recv, Send
from tests.properties import examples

COUNTS = {"p": st.integers(1, 6), "share": st.integers(1, 8), "pipelines": st.integers(1, 4)}


@examples(25)
@given(**COUNTS)
def test_messages_stay_within_their_pipeline(p, share, pipelines):
    schedule = avgpipe(p, pipelines * share, pipelines)
    assert set(schedule.routes()) == {(k, i) for k in range(p) for i in range(pipelines * share)}
    for rank, row in enumerate(lower(schedule).ops):
        assert all(op.peer // p == rank // p for op in row if isinstance(op, Send | Recv))


def test_one_pipeline_alone_is_1f1b_with_advance_and_averages_with_nobody():
    assert avgpipe(4, 8, pipelines=1, advance=2).ops == one_f_one_b_afp(4, 8, advance=2).ops
