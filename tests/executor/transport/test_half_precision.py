"""Messages in half precision: what they keep, what is sent whole, and that both ends agree."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipesched.executor import ExecutionError
from pipesched.executor.launch import RankContext
from pipesched.executor.launch.rank_device import RankDevice
from pipesched.executor.transport import Groups, LocalTransport
from pipesched.executor.transport.half_precision import is_compressed, pack, rest_bytes, unpack
from pipesched.profiles import element_bytes
from pipesched.profiles.costs import Compression, head_bytes
from pipesched.schedules.builders import build, build_generated
from tests.executor.job_sequence_ranks import run_module
from tests.executor.models import plain
from tests.executor.pipelines import CPU, Local, assert_equal, job
from tests.properties import examples

DTYPES = [torch.float32, torch.float64]


def back(tensor):
    """Pack and unpack as a receiver does; return the elements and whether they were compressed."""
    packed = pack(tensor)
    assert packed.head.numel() == head_bytes(tensor.nbytes, tensor.itemsize)
    assert rest_bytes(packed.head, tensor.numel(), tensor.dtype) == (0 if packed.rest is None else packed.rest.numel())
    elements = unpack(packed, tensor.dtype, tensor.device).view(tensor.shape)
    assert elements.dtype is tensor.dtype
    return elements, packed.rest is None


def same_bits(a, b):
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@examples(100)
@given(exponent=st.integers(-90, 110), seed=st.integers(0, 99), size=st.integers(1, 40))
def test_whatever_its_scale_a_tensor_keeps_eleven_bits(dtype, exponent, seed, size):
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2.0**exponent
    elements, is_half = back(x)
    assert is_half
    large = x.abs() >= x.abs().max() * 2.0**-28
    assert ((elements - x).abs()[large] <= x.abs()[large] * 2.0**-11).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_scale_is_a_power_of_two_so_that_what_half_precision_holds_comes_back_exactly(dtype):
    x = torch.tensor([1.0, -0.5, 1.5, 0.0, 2.0**-12, 1 + 2.0**-10], dtype=dtype)
    for scale in (1.0, 2.0**60, 2.0**-60):
        elements, is_half = back(x * scale)
        assert is_half
        assert torch.equal(elements, x * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_sent_as_it_is(dtype, odd):
    x = torch.tensor([1.0, odd, -0.0, 1 / 3], dtype=dtype)
    elements, is_half = back(x)
    assert not is_half
    assert same_bits(elements, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_would_be_lost_beside_a_large_element_is_sent_as_it_is(dtype):
    x = torch.full((200,), 2.0**-41, dtype=dtype)
    x[0] = 1.0
    elements, is_half = back(x)
    assert not is_half
    assert same_bits(elements, x)
    x[3:] = 2.0**-30  # now only two of two hundred are lost
    elements, is_half = back(x)
    assert is_half
    assert torch.equal(elements, torch.where(x == 2.0**-41, torch.zeros_like(x), x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_and_the_largest_numbers_come_back(dtype):
    limits = torch.finfo(dtype)
    for value in (limits.tiny, limits.smallest_normal / 4, limits.max, -limits.max, 0.0):
        x = torch.tensor([value, value / 2], dtype=dtype)
        elements, _ = back(x)
        torch.testing.assert_close(elements, x, rtol=2.0**-11, atol=0)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4)])
def test_every_shape_can_be_packed(shape):
    x = torch.ones(shape).transpose(0, -1) if len(shape) > 1 else torch.ones(shape)
    assert torch.equal(back(x)[0], x)


def test_only_what_is_wider_than_half_precision_is_compressed():
    assert [is_compressed(d) for d in (*DTYPES, torch.half, torch.bfloat16, torch.uint8)] == [True, True] + [False] * 3


def by_hand(num_microbatches, model, batch, lr):
    """GPipe on two stages of one layer each; what crosses the boundary is rounded, either way."""
    first, second = (layer().double() for layer in model.layers)
    yield first, second
    for x, y in zip(batch.inputs, batch.targets, strict=True):
        made = first(x)
        arrived = rounded(made.detach()).requires_grad_()
        (torch.nn.functional.mse_loss(second(arrived), y) / num_microbatches).backward()
        made.backward(rounded(arrived.grad))
    with torch.no_grad():
        for parameter in (*first.parameters(), *second.parameters()):
            parameter -= lr * parameter.grad
    yield first, second


def rounded(x):
    return (x * 2.0**8).half().double() / 2.0**8  # neither too large nor too small for half precision


def test_a_local_run_loses_what_its_messages_would_lose():
    schedule = build("gpipe", 2, 4)
    local_run = Local(schedule, plain(2), transport=lambda rank, room: LocalTransport(rank, room, "half"))
    run = by_hand(4, local_run.model, local_run.batch, 0.05)
    for layer, its in zip(next(run), (local_run.stage(0).module, local_run.stage(1).module), strict=True):
        layer.load_state_dict({key.removeprefix("0."): value for key, value in its.state_dict().items()})
    local_run.run()
    for layer, its in zip(next(run), (local_run.stage(0).module, local_run.stage(1).module), strict=True):
        assert_equal(its.parameters(), layer.parameters())
    plainly = Local(schedule, plain(2)).run()
    assert not torch.equal(local_run.parameters[0], plainly.parameters[0])


def test_over_nccl_it_is_refused():
    context = RankContext(0, RankDevice(CPU, "nccl", 1, True), Groups("nccl", CPU), 1.0, True)
    with pytest.raises(ExecutionError, match=r"compression: got half over nccl, expected gloo, .*; try backend gloo"):
        context.join(build_generated("pipedream", 2, 4), {}, {}, None, compression="half")


def test_emulated_messages_are_not_compressed():
    from pipesched.profiles.costs import uniform

    with pytest.raises(ExecutionError, match="compression: got half with costs to emulate"):
        job(build("gpipe", 2, 2), None, emulate=uniform(2, 1.0, 2.0), compression="half")


@pytest.mark.distributed
def test_over_gloo_both_ends_agree_on_every_message(tmp_path):
    assert [said.splitlines()[-1] for said in run_module("tests.executor.half_precision_ranks", 2, tmp_path)] == [
        "fine"
    ] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_message_weighs_what_the_simulator_supposes(dtype):
    tensor = torch.ones(7, dtype=dtype)
    num_bytes = pack(tensor).head.nbytes if is_compressed(dtype) else tensor.nbytes
    assert Compression(element_bytes(str(dtype).removeprefix("torch."))).message_bytes(tensor.nbytes) == num_bytes
