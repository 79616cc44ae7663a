"""The faults that are injected into a rank: it is killed, stopped or slow, or one of its ops fails."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import assert_never, final

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Rank, Stage
from pipesched.executor.launch import InjectedFault
from pipesched.schedules import Compute, Op


def with_faults(rank: Rank, faults: Iterable[InjectedFault], ops: Sequence[Op]) -> Rank:
    """Return `rank`, with those of the `faults` that are its own befalling it in its lowered list `ops`."""
    own = _OwnFaults([fault for fault in faults if fault.rank == rank.rank], ops)

    def at(index: int) -> None:
        rank.at(index)
        own.at(index)

    def probe(op: Compute, stage: Stage) -> Callable[[Tensor | None], None]:
        change, look = own.probe(stage), None if rank.probe is None else rank.probe(op, stage)

        def told(result: Tensor | None) -> None:
            change(result)
            if look is not None:
                look(result)

        return told

    return replace(rank, at=at, probe=probe)


@final
class _OwnFaults:
    """What befalls one rank, as it goes through its list."""

    def __init__(self, faults: Sequence[InjectedFault], ops: Sequence[Op]) -> None:
        self._faults = faults
        self._names = [str(op) for op in ops]
        self._run = -1
        self._factor = math.prod(fault.factor for fault in self._faults)
        self._is_nan = False

    def at(self, index: int) -> None:
        """Let what befalls the op at a position of the list happen, where it does before the op."""
        self._run += index == 0
        self._is_nan = False
        for fault in self._faults:
            if fault.op == self._names[index] and fault.run == self._run:
                self._befall(fault)

    def _befall(self, fault: InjectedFault) -> None:
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
            case "slow":
                pass
            case _:
                assert_never(fault.kind)

    def probe(self, stage: Stage) -> Callable[[Tensor | None], None]:
        """Return what lets the computation that begins now take longer, or give NaN, when it has ended."""
        begun_s = time.perf_counter()

        def change(result: Tensor | None) -> None:
            if self._is_nan and result is not None:
                result.detach().fill_(math.nan)
            if self._is_nan and isinstance(stage, ModuleStage):
                for parameter in stage.parameters:
                    if parameter.grad is not None:
                        parameter.grad.fill_(math.nan)
            if self._factor > 1:
                time.sleep((self._factor - 1) * (time.perf_counter() - begun_s))

        return change
