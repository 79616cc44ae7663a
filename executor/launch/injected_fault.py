"""A fault that is injected into a run on purpose, as text says it: ``kill:rank=2,op=1B3``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from pipesched.executor import ExecutionError
from pipesched.schedules import Schedule, shown

FaultKind: TypeAlias = Literal["kill", "stop", "raise", "exit", "nan", "slow"]
"""Ends the process (SIGKILL), stops it (SIGSTOP), raises in an op, leaves as if all were well, makes an op give NaN,
makes the computations of a rank take longer."""

_HINT = "try kill:rank=1,op=1F0, or slow:rank=1,factor=3"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """What befalls a rank.

    Attributes:
        op: The op at which it does, as lists show it; None where it is all of them (``slow``).
        run: Which run of the list, from 0: those that warm up are counted.
        factor: How many times as long computations take (``slow``).
    """

    kind: FaultKind
    rank: int
    op: str | None = None
    run: int = 0
    factor: float = 1.0


def read_fault(text: str) -> InjectedFault:
    """Return the fault that a text describes.

    Raises:
        ExecutionError: It describes none.
    """
    kind, _, rest = text.partition(":")
    if kind not in get_args(FaultKind):
        raise ExecutionError(f"inject: got {shown(text)}, expected one of {', '.join(get_args(FaultKind))}; {_HINT}")
    pairs = dict(part.partition("=")[::2] for part in rest.split(","))
    needed, optional = ({"rank", "factor"}, set[str]()) if kind == "slow" else ({"rank", "op"}, {"run"})
    if not needed <= pairs.keys() <= needed | optional or rest.count(",") + 1 != len(pairs):
        expected = f"{kind}: with {' and '.join(sorted(needed, reverse=True))}"
        raise ExecutionError(f"inject: got {shown(text)}, expected {expected}; {_HINT}")
    try:
        factor = float(pairs.get("factor", "1"))
        fault = InjectedFault(
            cast("FaultKind", kind), int(pairs["rank"]), pairs.get("op"), int(pairs.get("run", "0")), factor
        )
    except ValueError:
        fault = None
    if fault is None or fault.rank < 0 or fault.run < 0 or not (1 <= fault.factor <= 1e6 and math.isfinite(factor)):
        raise ExecutionError(f"inject: got {shown(text)}, expected numbers from 0, and a factor from 1 to 1e6; {_HINT}")
    return fault


def require_there(faults: Sequence[InjectedFault], lists: Schedule) -> None:
    """Refuse faults of ranks and ops that the lowered `lists` do not have.

    Raises:
        ExecutionError: There is no such rank, or no such op in its list.
    """
    for fault in faults:
        if fault.rank >= lists.num_ranks:
            raise ExecutionError(f"inject: got rank {fault.rank}, expected one below {lists.num_ranks}; {_HINT}")
        names = [str(op) for op in lists.ops[fault.rank]]
        if fault.op is not None and fault.op not in names:
            raise ExecutionError(
                f"inject: got op {shown(fault.op)}, expected one of rank {fault.rank}, as "
                f"{', '.join(names[:3])}; try one of them"
            )
