"""When a sent tensor may be let go: never before its receiver has it."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pipesched.executor import ExecutionError
from pipesched.executor.transport import NcclTransport, ProcessGroupTransport, RankChannels, TensorShape, TupleShape
from pipesched.executor.transport.boundary_shapes import _from_json, _shape_of, _to_json
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Payload, Phase, Send, computes
from pipesched.schedules.semantics import Acknowledgements
from tests.executor.pipelines import any_schedule


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_the_proofs_of_1f1b_count_the_computations_before_each_send(num_ranks):
    schedule = lower(build("1f1b", num_ranks, 7))
    for me in range(num_ranks - 1):
        names = [str(op) for op in schedule.ops[me + 1]]
        proofs = dict(Acknowledgements(schedule.ops[me + 1], me + 1, me, num_ranks))
        assert len(proofs) == 7
        for message, count in proofs.items():
            before = names[: names.index(f"{me + 1}SEND_B{message.microbatch}")]
            assert count == sum(name.startswith(f"{me + 1}F") for name in before)


def test_a_held_list_is_worked_through_once_and_any_other_whenever_it_is_read():
    ops = lower(build("1f1b", 2, 3)).ops[1]
    reads = []

    class Counted:
        def __iter__(self):
            reads.append(len(reads))
            return iter(ops)

    for is_held, num_reads in [(True, 1), (False, 2)]:
        reads.clear()
        proofs = Acknowledgements(Counted(), 1, 0, 2, is_held=is_held)
        assert list(proofs) == list(proofs) == [(Message(Payload.GRADIENT, 1, k), k + 1) for k in range(3)]
        assert len(reads) == num_reads


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "1f1b_afp", "interleaved", "pipedream"])
@pytest.mark.parametrize("seed", range(4))
def test_a_proof_never_counts_a_message_that_was_not_used(name, seed):
    schedule = lower(any_schedule(name, 3, seed))
    for me in range(3):
        for peer in range(3):
            messages = [op.message for op in schedule.ops[me] if isinstance(op, Send) and op.peer == peer]
            proofs = dict(Acknowledgements(schedule.ops[peer], peer, me, schedule.num_stages))
            used = set()
            for op in schedule.ops[peer]:
                for part in computes(op):  # F uses what comes from below, B what comes from above
                    is_forward = part.phase is Phase.FORWARD
                    payload = Payload.ACTIVATION if is_forward else Payload.GRADIENT
                    used.add(Message(payload, part.stage - 1 if is_forward else part.stage + 1, part.microbatch))
                if isinstance(op, Send) and op.peer == me:
                    assert set(messages[: proofs[op.message]]) <= used
            assert set(proofs) == {op.message for op in schedule.ops[peer] if isinstance(op, Send) and op.peer == me}


SEND = Send(Message(Payload.ACTIVATION, 0, 0), 1)


def over_gloo(channels, *compression, **given):
    return ProcessGroupTransport(channels, 1.0, *compression, **given)


def transport(shape, rank=0, make=over_gloo):
    """A rank of two, before anything is posted: no process group is needed."""
    programs = dict(enumerate(lower(build("gpipe", 2, 1)).ops))
    return make(RankChannels(rank, programs, 2, {0: shape}, torch.device("cpu")))


def test_taking_what_was_never_posted_is_an_error():
    with pytest.raises(ExecutionError, match="got no posted Recv"):
        transport(TensorShape((2, 8), torch.float32)).take(Message(Payload.GRADIENT, 1, 0))


def transposed():
    """A tensor without gaps that does not lie row by row, as an LSTM's output."""
    return torch.randn(4, 3, 5).transpose(0, 1)


def test_a_tensor_without_gaps_travels_as_it_lies_and_is_not_copied():
    tensor = transposed()
    shape = TensorShape(tuple(tensor.shape), tensor.dtype, tensor.stride())
    flat = shape.flat(tensor)
    assert flat.is_contiguous()
    assert flat.data_ptr() == tensor.data_ptr()
    arrived = shape.of(flat.clone())
    assert torch.equal(arrived, tensor)
    assert arrived.stride() == tensor.stride()


@pytest.mark.parametrize("strides", [None, (5, 15, 1)], ids=["row by row", "transposed"])
@pytest.mark.parametrize("tensor", [transposed(), transposed().contiguous(), torch.randn(3, 4, 9)[..., ::2]])
def test_a_tensor_that_lies_otherwise_is_copied_into_the_layout_of_the_channel(tensor, strides):
    shape = TensorShape((3, 4, 5), tensor.dtype, strides)
    flat = shape.flat(tensor)
    assert flat.is_contiguous()
    assert torch.equal(shape.of(flat.clone()), tensor)


@pytest.mark.parametrize("tensor", [transposed(), torch.randn(2, 3), torch.randn(2, 6)[:, ::2], torch.randn(())])
def test_what_a_stage_gives_is_told_to_the_others_with_its_layout(tensor):
    shape = _from_json(_to_json(_shape_of(0, tensor)))
    assert (shape.size, shape.dtype) == (tuple(tensor.shape), tensor.dtype)
    assert shape.of(torch.arange(tensor.numel())).stride() == torch.empty_like(tensor).stride()
    assert (shape.strides is None) == torch.empty_like(tensor).is_contiguous()


FLOATS, INTEGERS, FLAGS = torch.randn(2, 3), torch.arange(5), torch.tensor([True, False, True])
MIXED = TupleShape(
    (
        TensorShape((2, 3), torch.float32),
        None,
        TensorShape((5,), torch.int64, requires_grad=False),
        TensorShape((3,), torch.bool, requires_grad=False),
        TensorShape((3, 4, 5), torch.float64, (5, 15, 1)),
        TensorShape((0, 2), torch.float32),
    )
)


def mixed():
    return FLOATS, None, INTEGERS, FLAGS, transposed().double(), torch.empty(0, 2)


def test_a_tuple_is_one_message_whose_tensors_stand_at_multiples_of_16_bytes():
    message = MIXED.flat(mixed())
    assert (message.dtype, message.dim(), len(message)) == (torch.uint8, 1, 32 + 48 + 16 + 480)
    for begin, tensor in ((0, FLOATS), (32, INTEGERS), (80, FLAGS)):
        assert message[begin:][: tensor.nbytes].tolist() == tensor.view(-1).view(torch.uint8).tolist()


def test_a_tuple_arrives_as_views_of_its_message_with_layouts_and_requirements():
    message = MIXED.flat(mixed())
    arrived = MIXED.of(message)
    assert [None if tensor is None else tensor.requires_grad for tensor in arrived] == [
        True, None, False, False, True, True,
    ]  # fmt: skip
    for tensor, sent in zip(arrived, mixed(), strict=True):
        assert (tensor is None) == (sent is None)
        if sent is not None:
            assert (tensor.dtype, tensor.shape) == (sent.dtype, sent.shape)
            assert tensor.untyped_storage().data_ptr() == message.untyped_storage().data_ptr()
    assert arrived[4].stride() == (5, 15, 1)
    assert torch.equal(arrived[0], FLOATS)
    assert torch.equal(arrived[2], INTEGERS)
    assert torch.equal(arrived[3], FLAGS)
    arrived[2].add_(1)  # autograd must not take this for a change of the others
    assert arrived[0]._version == 0


def test_the_gradient_of_a_tuple_has_the_tensors_that_require_one():
    gradient = MIXED.gradient
    assert [part is None for part in gradient.parts] == [False, True, True, True, False, False]
    assert gradient.num_elements == 32 + 480
    nothing = TensorShape((5,), torch.int64, requires_grad=False).gradient
    assert (nothing.parts, nothing.num_elements) == ((None,), 16)
    assert TensorShape((5,), torch.float32).gradient == TensorShape((5,), torch.float32)


ENDS = {
    "gloo": over_gloo,
    "gloo, compressed": lambda channels: over_gloo(channels, "half"),
    "gloo, from GPUs": lambda channels: over_gloo(channels, is_staged=True),
    "nccl": lambda channels: NcclTransport(channels, {(0, 1): None, (1, 0): None}),
}


@pytest.mark.parametrize("make", ENDS.values(), ids=ENDS)
def test_a_boundary_has_one_message_however_many_tensors_cross_it(monkeypatch, make):
    sent = []

    def isend(tensor, peer, group=None, tag=0):
        sent.append(tensor)
        return SimpleNamespace(wait=lambda *arguments: True)

    monkeypatch.setattr(dist, "isend", isend)
    gradient = (FLOATS, None, None, None, transposed().double(), torch.empty(0, 2))
    back = Send(Message(Payload.GRADIENT, 1, 0), 0)
    for rank, send, value in ((0, SEND, mixed()), (1, back, gradient)):
        sent.clear()
        transport(MIXED, rank, make).send(send, value)
        assert [tensor.dtype for tensor in sent] == [torch.uint8]


ONE = TensorShape((2, 3), torch.float32)
TWO = TupleShape((ONE, TensorShape((5,), torch.int64, requires_grad=False)))


@pytest.mark.parametrize(
    ("shape", "value", "got"),
    [
        (ONE, torch.zeros(2, 4), "a tensor of torch.float32, (2, 4)"),
        (ONE, FLOATS.double(), "a tensor of torch.float64, (2, 3)"),
        (TWO, FLOATS, "a tensor of torch.float32, (2, 3)"),
        (TWO, (FLOATS, None), "a tuple of torch.float32, (2, 3); None"),
        (TWO, (FLOATS, INTEGERS[1:]), "a tuple of torch.float32, (2, 3); torch.int64, (4,)"),
        (TWO, (FLOATS.double(), INTEGERS), "a tuple of torch.float64, (2, 3); torch.int64, (5,)"),
    ],
)
def test_a_value_that_has_changed_is_not_sent(shape, value, got):
    with pytest.raises(ExecutionError) as raised:
        transport(shape).send(SEND, value)
    expected = "torch.float32, (2, 3)" + "; torch.int64, (5,)" * (shape is TWO)
    assert str(raised.value) == (
        f"0SEND_F0: got {got}, expected {expected}, the shape before the run; keep the shape of each output constant"
    )


@pytest.mark.parametrize("shape", [MIXED, TupleShape((None,)), TensorShape((), torch.int64, requires_grad=False)])
def test_a_shape_is_told_to_the_others_as_text(shape):
    assert _from_json(_to_json(shape)) == shape
