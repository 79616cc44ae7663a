"""What goes wrong in a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from schedules.op import Compute, Op, Recv, Send


class ExecutionError(ValueError):
    """A run cannot start, or ended before its lists did."""


def failed(rank: int, op: Op | None, reason: object) -> ExecutionError:
    """Return the error that names a rank, its op and the op's micro-batch."""
    if op is None:
        return ExecutionError(f"rank {rank} failed before its first op: {reason}")
    microbatch = ""
    if isinstance(op, Compute):
        microbatch = f" (micro-batch {op.microbatch})"
    elif isinstance(op, Send | Recv):
        microbatch = f" (micro-batch {op.message.microbatch})"
    return ExecutionError(f"rank {rank} failed at {op}{microbatch}: {reason}")


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Turn what torch.distributed raises while it waits into one line that begins with "waited for"."""
    try:
        yield
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExecutionError(f"waited for {what}: {reason}") from error
