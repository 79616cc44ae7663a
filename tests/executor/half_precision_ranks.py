"""One of two ranks that sends messages of every form.

Rank 0 sends activations to rank 1, which takes them in another order than they were sent.
"""

import os

import torch
import torch.distributed as dist

from pipesched.executor.transport import ProcessGroupTransport, RankChannels, TensorShape, TupleShape
from pipesched.schedules.ops import Message, Payload, Recv, Send, forward

CPU = torch.device("cpu")
SIZE = (3, 5)


def messages(dtype):
    """Tensors that fit and tensors that do not, in turn."""
    random = torch.Generator().manual_seed(0)
    for number in range(8):
        tensor = torch.randn(SIZE, generator=random, dtype=dtype)
        if number % 3 == 1:
            tensor[0, 0] = 1e30  # all others would be lost beside it
        if number == 5:
            tensor[1, 1] = torch.nan
        yield tensor


def main(arguments):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{arguments[0]}/store", rank=rank, world_size=2)
    sends = [Send(Message(Payload.ACTIVATION, 0, number), 1) for number in range(8)]
    programs = {0: [op for send in sends for op in (forward(0, send.message.microbatch), send)]}
    for is_staged in (False, True):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            channels = RankChannels(rank, programs if rank else {}, 2, {0: TensorShape(SIZE, dtype)}, CPU)
            transport = ProcessGroupTransport(channels, 30.0, "half", is_staged=is_staged)
            tensors = list(messages(dtype))
            for _ in range(2):  # runs of the list
                if rank == 0:
                    for send, tensor in zip(sends, tensors, strict=True):
                        transport.send(send, tensor)
                else:
                    for send in sends:
                        transport.post(Recv(send.message, 0))
                    for number in (1, 0, 4, 7, 3, 2, 6, 5):
                        check(
                            transport.take(sends[number].message), tensors[number], fits=number % 3 != 1 and number != 5
                        )
                transport.flush()
                dist.barrier()
    exchange_tuples(rank)
    print("fine", flush=True)
    return 0


def exchange_tuples(rank):
    """Send tuples in which each tensor fits or does not on its own, and one that is not compressed."""
    integers = TensorShape((2,), torch.int64, requires_grad=False)
    floats = TensorShape(SIZE, torch.float64)
    shape = TupleShape((floats, None, integers, floats, TensorShape(SIZE, torch.float32, requires_grad=False)))
    send = Send(Message(Payload.ACTIVATION, 0, 0), 1)
    programs = {0: [forward(0, 0), send]}
    for is_staged in (False, True):
        for first, second, third in ((0, 2, 3), (0, 1, 2), (4, 5, 1)):
            double, single = list(messages(torch.float64)), list(messages(torch.float32))
            value = double[first], None, torch.tensor([3, 2**60]), double[second], single[third]
            transport = ProcessGroupTransport(
                RankChannels(rank, programs if rank else {}, 2, {0: shape}, CPU), 30.0, "half", is_staged=is_staged
            )
            if rank == 0:
                transport.send(send, value)
            else:
                transport.post(Recv(send.message, 0))
                arrived = transport.take(send.message)
                assert [None if part is None else part.requires_grad for part in arrived] == [
                    True, None, False, True, False,
                ]  # fmt: skip
                assert torch.equal(arrived[2], value[2])
                for place, number in ((0, first), (3, second), (4, third)):
                    check(arrived[place].detach(), value[place], fits=number % 3 != 1 and number != 5)
            transport.flush()
            dist.barrier()


def check(arrived, sent, fits):
    if fits and sent.dtype is not torch.bfloat16:
        assert torch.equal(arrived, (sent * 2.0**8).half().to(sent.dtype) / 2.0**8)
        assert not torch.equal(arrived, sent)
    else:
        assert torch.equal(arrived.view(torch.uint8), sent.view(torch.uint8))
