"""The interpreter: executes the op list of one rank on tensors, over a transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import torch
from torch import Tensor
from torch.profiler import record_function

from pipesched.executor import ExecutionError, RunEnded, failed
from pipesched.executor.core.gradients import Term
from pipesched.executor.core.recorder import Recorder
from pipesched.executor.core.stage import ModuleStage, Stage
from pipesched.executor.core.streams import HostStreams, RankStreams
from pipesched.profiles.models import Value
from pipesched.schedules.ops import (
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    WeightsOp,
    computes,
    gives,
    needs_from_others,
    uses_up,
)

PendingReduction: TypeAlias = Callable[[], Tensor | None]
"""Returns the sum of a posted reduction, or None if the caller must give up its turn and ask again."""


class Transport(ABC):
    """One rank's end of its channels; a channel is a directed pair of ranks, in order."""

    @abstractmethod
    def send(self, op: Send, value: Value) -> None:
        """Post `value` for ``op.peer``; do not wait."""

    @abstractmethod
    def post(self, op: Recv) -> None:
        """Get ready for ``op.message`` from ``op.peer``; do not wait."""

    @abstractmethod
    def take(self, message: Message) -> Value | None:
        """Return the value of `message`, or None if the caller must give up its turn and ask again."""

    @abstractmethod
    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        """Post `tensor`, to be summed over all Reduces of the group; do not wait.

        The sum is the same to the last bit on each rank. Until it has arrived, `tensor` must not change.
        """

    @abstractmethod
    def flush(self) -> None:
        """Wait until everything sent has left."""


def require_expected(recv: Recv, sent: Message) -> None:
    """Refuse a Recv that stands at the place of another message in its channel.

    Raises:
        ExecutionError: The sender's message at this place is another one.
    """
    if sent != recv.message:
        raise ExecutionError(
            f"{recv}: rank {recv.peer} sends {Send(sent, 0)} at this place of the channel, expected "
            f"{Send(recv.message, 0)}; put the receives in the order of the sends"
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """The data of one run, by micro-batch: the first stage reads inputs, the last one targets."""

    inputs: Sequence[Value]
    targets: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait that a rank yields: `op` cannot continue before `message` has arrived.

    Attributes:
        message: The awaited message, or None for a wait for the other replicas or pipelines.
        reduce: The Reduce that it waits for, at a Step or at the end of the list.
        bucket: The number of the gradient bucket that it waits for, with `reduce`.
    """

    rank: int
    op: Op
    message: Message | None
    reduce: Reduce | None = None
    bucket: int = 0

    def __str__(self) -> str:
        if self.message is None:
            if self.reduce is not None and self.reduce.is_over_stages:
                return f"rank {self.rank} at {self.op} waits for the other stages"
            whom = "pipelines" if self.reduce is None else "replicas"
            return f"rank {self.rank} at {self.op} waits for the other {whom} of the stage"
        what = self.message.payload.name.lower()
        which = f"{what} {self.message.microbatch} of stage {self.message.stage}"
        return f"rank {self.rank} at {self.op} waits for the {which}"


Probe: TypeAlias = Callable[[Compute, Stage], Callable[[Value | None], None]]
"""Called before a computation with op and stage; the returned function is called with its result."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a run: its op list, its stages and its transport.

    Attributes:
        ops: The rank's op list, lowered; it is read from the start at each run.
        num_stages: Stages of the whole pipeline.
        stages: The stages of the rank.
        at: Called before each op with its position in `ops` and the op.
        probes: Called before each computation; the later ones see the changes of the earlier ones to its result.
        named: Returns an op under its name in messages: the list may be a part of a longer run.
        streams: Streams of the rank's device.
        on_turn: Called when a turn of the rank begins, in a process with several ranks.
    """

    rank: int
    ops: Iterable[Op]
    num_stages: int
    stages: Mapping[int, Stage]
    transport: Transport
    recorder: Recorder
    at: Callable[[int, Op], None] = lambda index, op: None  # noqa: ARG005 -- nobody need listen
    probes: Sequence[Probe] = ()
    named: Callable[[Op], Op] = lambda op: op
    streams: RankStreams = HostStreams()  # noqa: RUF009 -- without state
    on_turn: Callable[[], None] = lambda: None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Launch on the rank's stream and count its bytes inside the block, in a process with several ranks."""
        self.on_turn()
        with self.streams.turn(), self.recorder.turn():
            yield


def begin(rank: Rank) -> None:
    """Prepare another run of the list."""
    rank.streams.synchronize()  # weights were built or loaded on other streams
    for stage in rank.stages.values():
        stage.watch(rank.recorder.note)
        stage.begin()
    rank.recorder.begin(_resident_bytes(rank))


def end(rank: Rank) -> None:
    """Finish a run of the list."""
    rank.streams.synchronize()
    rank.recorder.end(_resident_bytes(rank))


def _resident_bytes(rank: Rank) -> int:
    """Return the bytes that the stages hold between two runs, or 0 without a meter, as the sum takes a while."""
    return sum(stage.resident_bytes() for stage in rank.stages.values()) if rank.recorder.has_meter else 0


def execute_rank(rank: Rank, batch: Batch) -> Iterator[Waiting | None]:
    """Run one rank's list; yield a `Waiting` while it waits, and None after each computation that is only launched.

    The yields keep other devices busy: a rank that launched all its ops at once would leave them idle. A driver with
    one rank per process resumes at once; the local driver gives other ranks a turn.

    Send and Recv post and never wait. A computation waits for the messages that it needs; an Overlap waits for the
    messages of both its computations, which then run one after the other. Reduce also posts: the stage's next Step, or
    the end of the list, waits for the other replicas.

    Raises:
        RankFailed: An op failed, or the list cannot continue; the message names rank, op and micro-batch.
        RunEnded: A listener ends the run.
    """
    values: dict[Message, Value] = {}
    reductions: dict[int, _Reduction] = {}
    op: Op | None = None
    try:
        for index, op in enumerate(rank.ops):
            rank.at(index, op)
            yield from _execute(rank, op, values, reductions, batch)
            if rank.streams.are_behind and isinstance(op, Compute | Overlap):
                yield None
        for op in [reduction.op for reduction in reductions.values()]:
            yield from _finish_reduction(rank, op, reductions.pop(op.stage))
        rank.transport.flush()
    except RunEnded:
        raise
    except (Exception, SystemExit) as error:  # a user's layer may raise anything, and may want to leave
        raise failed(rank.rank, None if op is None else rank.named(op), error) from error


def _execute(  # noqa: C901 -- one arm per word
    rank: Rank, op: Op, values: dict[Message, Value], reductions: dict[int, _Reduction], batch: Batch
) -> Iterator[Waiting]:
    mark = rank.recorder.mark
    posted = start = mark()
    match op:
        case Compute() | Overlap():
            for message in _travelled(op, rank.num_stages, values):
                while not _has_arrived(rank.transport, message, values):
                    yield Waiting(rank.rank, op, message)
                start = mark()
            with _profiled(op):
                for part in computes(op):
                    _compute(rank, part, values, batch)
        case Send():
            with _profiled(op):
                rank.transport.send(op, _take_made(op, values))
        case Recv():
            with _profiled(op):
                rank.transport.post(op)
        case WeightsOp():
            stage = _stage(rank, op.stage)
            if isinstance(op, Step) and op.stage in reductions:
                yield from _finish_reduction(rank, op, reductions.pop(op.stage))
            while not stage.is_ready(op):
                yield Waiting(rank.rank, op, None)
            start = mark()
            with _profiled(op):
                stage.update(op)
        case Unshard() | Reshard():
            pass  # our weights are whole
        case Reduce():
            if op.stage in reductions:
                yield from _finish_reduction(rank, op, reductions.pop(op.stage))
            reductions[op.stage] = _reduce(rank, op)
        case _:
            assert_never(op)
    rank.recorder.add(posted, start, mark())


def _travelled(op: Compute | Overlap, num_stages: int, values: Mapping[Message, Value]) -> Iterator[Message]:
    """Yield the messages that `op` needs from other stages and that this rank has not made itself."""
    for part in computes(op):
        for message in needs_from_others(part, num_stages):
            if message not in values:
                yield message


def _has_arrived(transport: Transport, message: Message, values: dict[Message, Value]) -> bool:
    """Move `message` into `values` if it has arrived, without a local name, which would keep it after its use."""
    value = transport.take(message)
    if value is not None:
        values[message] = value
    return value is not None


def _compute(rank: Rank, op: Compute, values: dict[Message, Value], batch: Batch) -> None:
    received = target = None
    for message in needs_from_others(op, rank.num_stages):
        received = values.pop(message) if uses_up(op) else values[message]
    if op.phase is Phase.FORWARD:
        if op.stage == 0:
            received = batch.inputs[op.microbatch]
        if op.stage == rank.num_stages - 1:
            target = batch.targets[op.microbatch]
    stage = _stage(rank, op.stage)
    listeners = [probe(op, stage) for probe in rank.probes]
    result, made = stage.compute(op, received, target), gives(op)
    for tell in listeners:
        tell(result)
    if made is not None and result is not None and 0 <= made.receiver < rank.num_stages:
        values[made] = result


@dataclass(frozen=True, slots=True)
class _Reduction:
    """A reduction that is posted: the terms of a stage, until their sums have arrived.

    Attributes:
        index: The position of the Reduce among the ops of the recorder.
    """

    op: Reduce
    index: int
    terms: list[tuple[Term, PendingReduction]]


def _reduce(rank: Rank, op: Reduce) -> _Reduction:
    """Post all terms of a stage."""
    posted = []
    for term in _stage(rank, op.stage).terms(op):
        with _profiled(op):
            posted.append((term, rank.transport.reduce(op, term.flatten())))
    return _Reduction(op, len(rank.recorder), posted)


def _finish_reduction(rank: Rank, op: Op, reduction: _Reduction) -> Iterator[Waiting]:
    """Wait, at `op`, until all terms are summed, and give their sums to the stage."""
    for number, (term, take) in enumerate(reduction.terms):
        while (summed := take()) is None:
            yield Waiting(rank.rank, op, None, reduction.op, number)
        term.unflatten(summed)
    rank.recorder.extend(reduction.index, rank.recorder.mark())


def _stage(rank: Rank, index: int) -> Stage:
    if index not in rank.stages:
        held = ", ".join(map(str, rank.stages)) or "none"
        raise ExecutionError(f"got an op of stage {index}, expected a stage of this rank ({held}); check the lists")
    return rank.stages[index]


def _take_made(op: Send, values: dict[Message, Value]) -> Value:
    if op.message not in values:
        what = "activation" if op.message.payload is Payload.ACTIVATION else "gradient"
        raise ExecutionError(
            f"{op}: got no such {what} to send, expected one that is computed and not yet sent; check the lists"
        )
    return values.pop(op.message)


_SILENT: AbstractContextManager[None] = nullcontext()


def _profiled(op: Op) -> AbstractContextManager[object]:
    """Name `op` as PyTorch's runtime does, while a profiler runs (a name costs 6 us)."""
    return record_function(f"PP:{op}") if torch._C._autograd._profiler_enabled() else _SILENT  # noqa: SLF001 -- there is no public one


def check_finite(op: Compute, stage: Stage) -> Callable[[Value | None], None]:
    """Return a `Probe` that refuses NaN and infinity in the results of `op`.

    Every op is checked, so the first refused op is the origin. The host waits for a GPU once after each op.

    Raises:
        ExecutionError: By the returned function; names the tensor and the invalid value.
    """

    def check(result: Value | None) -> None:
        made = [*_made(op, stage, result)]
        are_finite = torch.stack([torch.isfinite(tensor).all() for _, tensor in made]).tolist() if made else []
        for (name, tensor), is_finite in zip(made, are_finite, strict=True):
            if not is_finite:
                what = "NaN" if bool(torch.isnan(tensor).any()) else "infinity"
                raise ExecutionError(
                    f"got the first {what} of this run in {name} of stage {op.stage}, expected finite numbers; try a "
                    "smaller lr, or another dtype"
                )

    return check


def _made(op: Compute, stage: Stage, result: Value | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the results of `op` with their names."""
    is_forward = op.phase in (Phase.FORWARD, Phase.RECOMPUTE)
    name = "the output" if is_forward else "the gradient of the input"
    for place, tensor in enumerate((result,) if isinstance(result, Tensor) else result or ()):
        if tensor is not None and tensor.is_floating_point():
            yield name if isinstance(result, Tensor) else f"tensor {place} of {name}", tensor.detach()
    if not isinstance(stage, ModuleStage):
        return
    if op.phase is Phase.FORWARD and stage.last_loss is not None:
        yield "the loss", stage.last_loss
    if not is_forward:
        for name, parameter in stage.module.named_parameters():
            if parameter.grad is not None:
                yield f"the gradient of {name}", parameter.grad
