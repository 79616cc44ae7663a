"""One rank of an all-reduce over all ranks."""

import hashlib
import os

import torch
import torch.distributed as dist

from pipesched.executor.transport import Groups, ProcessGroupTransport, RankChannels
from pipesched.schedules.ops import Reduce

CPU = torch.device("cpu")


def main(arguments):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{arguments[0]}/store", rank=rank, world_size=size)
    groups = Groups("gloo", CPU).of_sums({0: range(size)})
    for is_staged in (False, True):
        transport = ProcessGroupTransport(RankChannels(rank, {}, 1, {}, CPU, groups), 30.0, is_staged=is_staged)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8):
            for length in (1, 1000, 30_001):
                term = torch.randn(length, generator=torch.Generator().manual_seed(rank)).to(dtype)
                expected = sum(torch.randn(length, generator=torch.Generator().manual_seed(r)) for r in range(size))
                total = transport.reduce(Reduce(0), term)()
                if dtype in (torch.float32, torch.float64):
                    torch.testing.assert_close(total.float(), expected, rtol=1e-4, atol=1e-4)
                print(dtype, length, hashlib.sha256(total.view(torch.uint8).numpy().tobytes()).hexdigest())
    dist.barrier()
    return 0
