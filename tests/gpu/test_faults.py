"""A run on streams that fails ends in time, with the rank and the op that failed."""

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.distributed]


@pytest.mark.parametrize("what", ["kill", "hang", "hang in a training"])
def test_the_rank_and_the_op_are_named_soon_behind_the_time_out(what, device, row):
    faults = row("faults")
    fault = next(fault for fault in faults.FAULTS if fault.what == what)
    if fault.is_training and device.type == "cpu":
        pytest.skip("in one process on a CPU nobody watches a training")
    failure = faults.failure_of(fault, device.type)
    assert failure.message.startswith(faults.EXPECTED), failure.message
    assert failure.seconds <= fault.waits_s + faults.LATER_S, failure
