"""What PyTorch dumps runs in our executor, all ranks in one process, with the gradients of the whole model."""

import pytest

from pipesched.schedules.check import find_faults
from pipesched.schedules.formats.torch_csv import read_csv
from tests.executor import pipelines
from tests.schedules.torch_schedules import constructed, loop, vee

MODEL = "mlp:layers=8,width=8"
GENERATORS = [
    ("ScheduleLoopedBFS", 2, loop(2, 2)),
    ("ScheduleInterleaved1F1B", 2, loop(2, 3)),
    ("ScheduleInterleavedZeroBubble", 2, loop(2, 2)),
    ("ScheduleZBVZeroBubble", 2, vee(2)),
    ("ScheduleDualPipeV", 4, vee(4)),
]


@pytest.mark.parametrize(("kind", "p", "stages"), GENERATORS)
def test_what_pytorch_dumps_runs_here(tmp_path, kind, p, stages):
    """Compare every gradient by its own largest value: those of the first layers are small."""
    constructed(kind, p, 2 * p, stages)._dump_csv(str(tmp_path / "theirs.csv"), format="compute_comms")
    schedule = read_csv(tmp_path / "theirs.csv", steps=False)
    assert not find_faults(schedule)
    module, inputs, targets, loss = pipelines.whole_model(MODEL, 2 * schedule.num_microbatches)
    loss(module(inputs), targets).backward()
    run = pipelines.Local(schedule, MODEL).run()
    for parameter, whole in zip(run.parameters, module.parameters(), strict=True):
        pipelines.assert_equal([parameter.grad], [whole.grad])
