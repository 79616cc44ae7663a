"""A fault that is injected into a run on purpose, written as ``kill:rank=2,op=1B3``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast, get_args

from pipesched.executor import ExecutionError
from pipesched.executor.core import channels, lists_of
from pipesched.schedules import Schedule
from pipesched.schedules.common import shown
from pipesched.schedules.ops import Compute, Op, Overlap, Recv, Send, rewritten

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
    """Return how an op is called at which a fault befalls a rank: as in the first step, without its weight version.

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
        faults: The faults.
        lists: The lists of a step, or of a run that is measured; lowered if they are in memory.
        num_microbatches: Micro-batches of a step, or of a list that is measured.
        num_times: Steps of the training, or runs of the list.

    Raises:
        ExecutionError: There is no such rank, or no such op in its list, or not as often.
    """
    for fault in faults:
        beyond = [rank for rank in (fault.rank, fault.peer) if rank is not None and rank >= lists.num_ranks]
        if beyond:
            raise ExecutionError(f"inject: got rank {beyond[0]}, expected one below {lists.num_ranks}; {_HINT}")
        if fault.peer is not None and (fault.rank, fault.peer) not in channels(lists):
            raise ExecutionError(
                f"inject: got link {fault.rank}-{fault.peer}, expected two ranks that send each other messages; {_HINT}"
            )
        if fault.op is None or fault.rank is None:
            continue
        if fault.times_before >= num_times:
            raise ExecutionError(
                f"inject: got run or step {fault.times_before}, expected one below {num_times}; they are counted from 0"
            )
        ops = lists_of(lists, {fault.rank})[fault.rank]
        names = {named_in_step(op, num_microbatches): isinstance(op, Compute | Overlap) for op in ops}
        if fault.op not in names:
            raise ExecutionError(
                f"inject: got op {shown(fault.op)}, expected one of rank {fault.rank}, as "
                f"{', '.join([*names][:3])}; try one of them"
            )
        if fault.kind == "nan" and not names[fault.op]:
            raise ExecutionError(
                f"inject: got nan at {fault.op}, expected an op that computes something from which others go on, as "
                f"{next(name for name, computes in names.items() if computes)}; try that"
            )
