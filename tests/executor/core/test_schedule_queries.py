import pytest

from pipesched.executor.core.schedule_queries import is_flushed
from pipesched.schedules.transforms import training_run


@pytest.mark.parametrize(
    ("name", "expected"), [("1f1b", True), ("zb_h1", True), ("pipedream", False), ("wpipe", False)]
)
def test_every_op_reads_the_newest_weights_only_where_steps_end_a_batch_that_is_repeated(name, expected):
    lists = training_run(name, 2, 4, 6).lists(6)
    assert [is_flushed(lists, rank, rank) for rank in range(2)] == [expected] * 2
