"""Faults that are injected into a run on purpose, written as ``kill:rank=2,op=1B3``, and checks for finite numbers."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, assert_never, cast, final, get_args

from torch import Tensor

from pipesched.executor import ExecutionError, FaultSettings
from pipesched.executor.core import (
    ModuleStage,
    PendingReduction,
    Rank,
    Stage,
    Transport,
    channels,
    check_finite,
    lists_of,
)
from pipesched.profiles.models import Value, mapped, tensors_of
from pipesched.schedules import Schedule
from pipesched.schedules.common import shown
from pipesched.schedules.formats import fill_disk
from pipesched.schedules.ops import Compute, Message, Op, Overlap, Phase, Recv, Reduce, Send, rewritten

FaultKind: TypeAlias = Literal["kill", "stop", "raise", "exit", "nan", "slow", "drop-link", "disk-full"]
"""Ends the process (SIGKILL), stops it (SIGSTOP), raises in an op, leaves as if all were well, makes an op give NaN,
makes the computations of a rank take longer, loses the messages between two ranks, leaves no room for files."""

_HINT = "try kill:rank=1,op=1F0, or slow:rank=1,factor=3"
_TIMES = {"run", "step"}
"""Names of the time of a fault at an op: a run of a measured list, or a step of a training."""
_NEEDED = {"slow": {"rank", "factor"}, "drop-link": {"rank", "peer", "after"}, "disk-full": set[str]()}
_EXAMPLES = {"slow": "slow:rank=1,factor=3", "drop-link": "drop-link:0-1,after=10", "disk-full": "disk-full:rank=1"}
"""Examples of the kinds that are not a fault of one op."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault of a rank.

    Attributes:
        rank: The rank, or None for all ranks.
        op: The op at which the fault occurs, as `named_in_step` names it, or None for all ops (``slow``).
        times_before: How often the rank has reached the op before: runs of the list, warm-up included, or steps of a
            training.
        factor: Factor on the time of computations (``slow``).
        peer: The other end of the link (``drop-link``).
        after: Messages that each end sends before messages are lost (``drop-link``).
    """

    kind: FaultKind
    rank: int | None
    op: str | None = None
    times_before: int = 0
    factor: float = 1.0
    peer: int | None = None
    after: int = 0

    def befalls(self, rank: int) -> bool:
        """Return whether it befalls this rank."""
        return self.rank is None or rank in (self.rank, self.peer)

    def peer_of(self, rank: int) -> int | None:
        """Return the other end of the link (``drop-link``)."""
        return self.peer if rank == self.rank else self.rank


def read_fault(text: str) -> InjectedFault:
    """Return the fault that a text describes.

    Raises:
        ExecutionError: It describes none.
    """
    kind, _, rest = text.partition(":")
    if kind not in get_args(FaultKind):
        raise ExecutionError(f"inject: got {shown(text)}, expected one of {', '.join(get_args(FaultKind))}; {_HINT}")
    if kind == "drop-link":
        rest = "rank=" + rest.replace("-", ",peer=", 1)
    parts = rest.split(",") if rest else []
    pairs = dict(part.partition("=")[::2] for part in parts)
    needed = _NEEDED.get(kind, {"rank", "op"})
    optional = {"rank"} if kind == "disk-full" else _TIMES if "op" in needed else set[str]()
    given = pairs.keys() & optional
    if needed | given != pairs.keys() or len(given) > 1 or len(parts) != len(pairs):
        expected = f"something as {_EXAMPLES.get(kind, f'{kind}:rank=1,op=1F0')}"
        raise ExecutionError(f"inject: got {shown(text)}, expected {expected}")
    times = next((pairs[name] for name in given & _TIMES), "0")
    try:
        numbers = {name: int(pairs[name]) for name in ("rank", "peer", "after") if name in pairs}
        times_before, factor = int(times), float(pairs.get("factor", "1"))
    except ValueError:
        numbers, times_before, factor = {}, -1, math.nan
    if min([times_before, *numbers.values()]) < 0 or not 1 <= factor <= 1e6:
        raise ExecutionError(f"inject: got {shown(text)}, expected numbers from 0, and a factor from 1 to 1e6; {_HINT}")
    op = pairs["op"].partition("@")[0] if "op" in pairs else None
    rank, peer = numbers.get("rank"), numbers.get("peer")
    return InjectedFault(cast("FaultKind", kind), rank, op, times_before, factor, peer, numbers.get("after", 0))


def named_in_step(op: Op, num_microbatches: int) -> str:
    """Return the name by which a fault refers to an op: its name in the first step, without its weight version.

    Args:
        op: An op of any step.
        num_microbatches: Micro-batches of a step, or of a list that is measured.
    """

    def compute(part: Compute) -> Compute:
        return Compute(part.phase, part.stage, part.microbatch % num_microbatches)

    def post(posted: Send | Recv) -> Send | Recv:
        message = posted.message
        return replace(posted, message=message._replace(microbatch=message.microbatch % num_microbatches))

    return str(rewritten(op, compute, post))


def require_there(faults: Sequence[InjectedFault], lists: Schedule, num_microbatches: int, num_times: int) -> None:
    """Refuse faults of ranks and ops that the `lists` do not have, or that would come too late.

    Args:
        lists: The lists of a step, or of a run that is measured; lowered if they are in memory.
        num_microbatches: Micro-batches of a step, or of a list that is measured.
        num_times: Steps of the training, or runs of the list.

    Raises:
        ExecutionError: A rank does not exist, its list lacks the op, or the op does not occur that often.
    """
    for fault in faults:
        beyond = [rank for rank in (fault.rank, fault.peer) if rank is not None and rank >= lists.num_ranks]
        if beyond:
            raise ExecutionError(f"inject: got rank {beyond[0]}, expected a rank below {lists.num_ranks}; {_HINT}")
        if fault.peer is not None and (fault.rank, fault.peer) not in channels(lists):
            raise ExecutionError(
                f"inject: got link {fault.rank}-{fault.peer}, expected two ranks that send each other messages; {_HINT}"
            )
        if fault.op is None or fault.rank is None:
            continue
        if fault.times_before >= num_times:
            raise ExecutionError(
                f"inject: got run or step {fault.times_before}, expected a number below {num_times}; runs and steps "
                "are counted from 0"
            )
        ops = lists_of(lists, {fault.rank})[fault.rank]
        names = {named_in_step(op, num_microbatches): isinstance(op, Compute | Overlap) for op in ops}
        if fault.op not in names:
            raise ExecutionError(
                f"inject: got op {shown(fault.op)}, expected an op of rank {fault.rank}, as {', '.join([*names][:3])}; "
                "try one of them"
            )
        if fault.kind == "nan" and not names[fault.op]:
            raise ExecutionError(
                f"inject: got nan at {fault.op}, expected an op whose result other ops need, as "
                f"{next(name for name, computes in names.items() if computes)}; try this op"
            )


@final
class LossyTransport(Transport):
    """A transport that loses messages to some ranks, after the first ones.

    Args:
        inner: Transport of the delivered messages.
        left: Number of messages to each of these ranks that are still delivered; counted down.
        on_loss: Called at each lost message.
    """

    def __init__(
        self, inner: Transport, left: dict[int | None, int], on_loss: Callable[[], None] = lambda: None
    ) -> None:
        self._inner = inner
        self._left = left
        self._on_loss = on_loss

    def send(self, op: Send, value: Value) -> None:
        if op.peer in self._left:
            if not self._left[op.peer]:
                self._on_loss()
                return
            self._left[op.peer] -= 1
        self._inner.send(op, value)

    def post(self, op: Recv) -> None:
        self._inner.post(op)

    def take(self, message: Message) -> Value | None:
        return self._inner.take(message)

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        return self._inner.reduce(op, tensor)

    def flush(self) -> None:
        self._inner.flush()


FAULT_TIMES = "PIPESCHED_FAULT_TIMES"
"""Names, in the environment, a file that gets a line when a fault befalls a rank [ns of the monotonic clock]."""


def note_time() -> None:
    """Write the time of a fault to the file `FAULT_TIMES`, for measurements of the delay until it is reported."""
    if name := os.environ.get(FAULT_TIMES):
        with Path(name).open("a") as file:
            file.write(f"{time.monotonic_ns()}\n")


@final
class Interference:
    """The faults of one rank, over all lists that it runs.

    Args:
        settings: The faults of all ranks, and whether NaN and infinity end the run at the first op that gives them.
        num_microbatches: Micro-batches of a step, or of a list that is measured.
        rank: The rank.
    """

    def __init__(self, settings: FaultSettings, num_microbatches: int, rank: int) -> None:
        self._faults = [fault for fault in map(read_fault, settings.inject) if fault.befalls(rank)]
        self._num_microbatches = num_microbatches
        self._checks = [check_finite] if settings.is_finite_checked else []
        self._times: Counter[str] = Counter()  # how often the rank has reached each op
        self._left = {fault.peer_of(rank): fault.after for fault in self._faults if fault.kind == "drop-link"}
        self._factor = math.prod(fault.factor for fault in self._faults)
        self._is_nan = False
        if any(fault.kind == "disk-full" for fault in self._faults):
            fill_disk(note_time)

    def on(self, rank: Rank) -> Rank:
        """Return the rank with its faults injected, for another list."""
        if not self._faults:
            return replace(rank, probes=self._checks)
        transport = LossyTransport(rank.transport, self._left, note_time) if self._left else rank.transport

        def at(index: int, op: Op) -> None:
            rank.at(index, op)
            self.befall(op)

        return replace(rank, transport=transport, at=at, probes=[self.probe, *self._checks])

    def befall(self, op: Op) -> None:
        """Apply the faults that occur before an op of the list."""
        name = named_in_step(op, self._num_microbatches)
        self._is_nan = False
        for fault in self._faults:
            if fault.op == name and fault.times_before == self._times[name]:
                note_time()
                self._do(fault)
        self._times[name] += 1

    def _do(self, fault: InjectedFault) -> None:
        match fault.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit":
                os._exit(0)
            case "raise":
                raise ExecutionError("a fault was injected here")
            case "nan":
                self._is_nan = True
            case "slow" | "drop-link" | "disk-full":
                pass  # at no op
            case _:
                assert_never(fault.kind)

    def probe(self, op: Compute, stage: Stage) -> Callable[[Value | None], None]:
        """Return a function that, at the end of the computation, delays it or fills its result with NaN."""
        begun_s = time.perf_counter()
        hook = None
        if self._is_nan and isinstance(stage, ModuleStage) and op.phase in (Phase.FORWARD, Phase.RECOMPUTE):
            hook = stage.module.register_forward_hook(_spoil)  # so that a loss, and all that follows, is NaN too

        def change(result: Value | None) -> None:
            if hook is not None:
                hook.remove()
            elif self._is_nan:
                _fill_with_nan(result, stage)
            if self._factor > 1:
                time.sleep((self._factor - 1) * (time.perf_counter() - begun_s))

        return change


def _spoil(module: object, arguments: object, output: Value) -> Value:  # noqa: ARG001 -- as torch calls it
    return mapped(lambda part: part * math.nan if part.is_floating_point() else part, output)


def _fill_with_nan(result: Value | None, stage: Stage) -> None:
    """Fill the results of a backward pass with NaN: the gradients of its input and of its parameters."""
    gradients = [] if result is None else [tensor.detach() for tensor in tensors_of(result)]
    if isinstance(stage, ModuleStage):
        gradients += [parameter.grad for parameter in stage.parameters if parameter.grad is not None]
    for gradient in gradients:
        gradient.fill_(math.nan)
