"""What PyTorch dumps runs in our executor, all ranks in one process, with the gradients of the whole model."""

import pytest

from pipesched.schedules.check import find_faults
from pipesched.schedules.formats.torch_csv import read_csv
from tests.executor import pipelines
from tests.schedules.torch_schedules import constructed, loop, vee

MODEL = "mlp:layers=16,width=8"
GENERATORS = [
    ("ScheduleLoopedBFS", 4, 8, loop(4, 2)),
    ("ScheduleInterleaved1F1B", 4, 8, loop(4, 3)),
    ("ScheduleInterleavedZeroBubble", 4, 8, loop(4, 2)),
    ("ScheduleZBVZeroBubble", 4, 8, vee(4)),
    ("ScheduleDualPipeV", 4, 8, vee(4)),
    ("ScheduleDualPipeV", 8, 16, vee(8)),
]


def assert_right(schedule):
    """Compare every gradient by its own largest value: those of the first layers are small."""
    assert not find_faults(schedule)
    module, inputs, targets, loss = pipelines.whole_model(MODEL, 2 * schedule.num_microbatches)
    loss(module(inputs), targets).backward()
    run = pipelines.Local(schedule, MODEL).run()
    for parameter, whole in zip(run.parameters, module.parameters(), strict=True):
        pipelines.assert_equal([parameter.grad], [whole.grad])


@pytest.mark.parametrize(("kind", "p", "m", "stages"), GENERATORS)
def test_what_pytorch_dumps_runs_here(tmp_path, kind, p, m, stages):
    path = tmp_path / "theirs.csv"
    constructed(kind, p, m, stages)._dump_csv(str(path), format="compute_comms")
    assert_right(read_csv(path, steps=False))
