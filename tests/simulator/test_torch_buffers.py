"""A buffer per micro-batch is what PyTorch's own stages hold: counted there."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory
from tests.torch_releases import runtime_of_2_13

WIDTHS = (3, 5, 7, 2)  # of the input and of what each stage hands on
ROWS = 4  # in a micro-batch


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def buffers_in_torch(m):
    """Run a batch over three stages on one rank, and return the bytes of all their receive buffers."""
    layers = [nn.Linear(a, b) for a, b in pairwise(WIDTHS)]
    stages = [PipelineStage(layer, index, len(layers), torch.device("cpu")) for index, layer in enumerate(layers)]
    schedule = ScheduleInterleaved1F1B(stages, m, loss_fn=lambda y, target: (y - target).square().mean())
    schedule.step(torch.randn(ROWS * m, WIDTHS[0]), target=torch.randn(ROWS * m, WIDTHS[-1]))
    kept = [infos for stage in stages for infos in (stage.args_recv_info, stage.grad_recv_info)]
    buffers = [receipt.buffer for infos in kept for of_one in infos.values() for receipt in of_one]
    return sum(buffer.nbytes for buffer in buffers if buffer is not None)


@runtime_of_2_13
@pytest.mark.distributed
@pytest.mark.parametrize("m", [1, 5])
def test_we_count_as_many_bytes_of_buffers_as_pytorch_holds(alone, m):
    outputs = [4 * ROWS * width for width in WIDTHS[1:]]
    costs = StageCosts(tuple(StageCost(1.0, 2.0, output_bytes=num_bytes) for num_bytes in outputs))
    schedule = build("interleaved", 1, m, 3)
    samples = memory(simulate_lists(schedule, costs), costs, schedule, buffers="per_microbatch")
    assert dict(peak_memory(samples)[0].bytes_by_kind)["receive_buffers"] == buffers_in_torch(m)
