"""The interference with a rank on purpose: faults befall it, and numbers that are not finite end it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import assert_never, final

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Probe, Rank, Stage, check_finite
from pipesched.executor.launch.injected_fault import InjectedFault, named_in_step
from pipesched.executor.transport import LossyTransport
from pipesched.schedules.formats import fill_disk
from pipesched.schedules.ops import Compute, Op, Phase

FAULT_TIMES = "PIPESCHED_FAULT_TIMES"
"""Names, in the environment, a file that gets a line when a fault befalls a rank [ns of the monotonic clock]."""


def note_time() -> None:
    """Write the time of a fault to the file `FAULT_TIMES`, for measurements of the delay until it is reported."""
    if name := os.environ.get(FAULT_TIMES):
        with Path(name).open("a") as file:
            file.write(f"{time.monotonic_ns()}\n")


@final
class Interference:
    """The faults of the rank of this process, over all lists that it runs.

    Args:
        faults: The faults of all ranks.
        num_microbatches: Micro-batches of a step, or of a list that is measured.
        is_finite_checked: Whether NaN and infinity end the run at the first op that gives them.
    """

    def __init__(self, faults: Iterable[InjectedFault], num_microbatches: int, *, is_finite_checked: bool) -> None:
        self._faults = tuple(faults)
        self._num_microbatches = num_microbatches
        self._look = check_finite if is_finite_checked else None
        self._times: Counter[str] = Counter()
        self._left: dict[int | None, int] = {}

    def on(self, rank: Rank) -> Rank:
        """Return `rank` with its faults injected."""
        own = [fault for fault in self._faults if fault.befalls(rank.rank)]
        if not own:
            return replace(rank, probe=self._look)
        if any(fault.kind == "disk-full" for fault in own):
            fill_disk(note_time)
        lossy = {fault.peer_of(rank.rank): fault.after for fault in own if fault.kind == "drop-link"}
        self._left = lossy | self._left  # messages of earlier lists count
        transport = LossyTransport(rank.transport, self._left, note_time) if lossy else rank.transport
        faults = _OwnFaults(own, self._num_microbatches, self._times)

        def at(index: int, op: Op) -> None:
            rank.at(index, op)
            faults.befall()

        probe = _in_turn(faults.probe, self._look)
        return replace(rank, ops=faults.following(rank.ops), transport=transport, at=at, probe=probe)


def _in_turn(first: Probe, second: Probe | None) -> Probe:
    """Return a probe that applies two probes in order: the second one sees the changes of the first."""

    def probe(op: Compute, stage: Stage) -> Callable[[Tensor | None], None]:
        parts = [part(op, stage) for part in (first, second) if part is not None]

        def told(result: Tensor | None) -> None:
            for tell in parts:
                tell(result)

        return told

    return probe


@final
class _OwnFaults:
    """The faults of one rank during a list.

    Args:
        faults: Faults of the rank.
        num_microbatches: Micro-batches of a step.
        times: Number of times that the rank has reached each op, earlier lists included.
    """

    def __init__(self, faults: Sequence[InjectedFault], num_microbatches: int, times: Counter[str]) -> None:
        self._faults = faults
        self._num_microbatches = num_microbatches
        self._times = times
        self._factor = math.prod(fault.factor for fault in self._faults)
        self._op: Op | None = None
        self._is_nan = False

    def following(self, ops: Iterable[Op]) -> Iterable[Op]:
        """Return the same ops; each is recorded before the rank reaches it."""
        return _Followed(ops, self._look)

    def _look(self, op: Op) -> None:
        self._op = op

    def befall(self) -> None:
        """Apply the faults that occur before the current op."""
        assert self._op is not None, "the rank is at an op"
        name = named_in_step(self._op, self._num_microbatches)
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

    def probe(self, op: Compute, stage: Stage) -> Callable[[Tensor | None], None]:
        """Return a function that, at the end of the computation, delays it or fills its result with NaN."""
        begun_s = time.perf_counter()
        hook = None
        if self._is_nan and isinstance(stage, ModuleStage) and op.phase in (Phase.FORWARD, Phase.RECOMPUTE):
            hook = stage.module.register_forward_hook(_spoil)  # so that a loss, and all that follows, is NaN too

        def change(result: Tensor | None) -> None:
            if hook is not None:
                hook.remove()
            elif self._is_nan:
                _fill_with_nan(result, stage)
            if self._factor > 1:
                time.sleep((self._factor - 1) * (time.perf_counter() - begun_s))

        return change


def _spoil(module: object, arguments: object, output: object) -> object:  # noqa: ARG001 -- as torch calls it
    return output * math.nan if isinstance(output, Tensor) else output


def _fill_with_nan(result: Tensor | None, stage: Stage) -> None:
    """Fill the results of a backward pass with NaN: the gradients of its input and of its parameters."""
    gradients = [] if result is None else [result.detach()]
    if isinstance(stage, ModuleStage):
        gradients += [parameter.grad for parameter in stage.parameters if parameter.grad is not None]
    for gradient in gradients:
        gradient.fill_(math.nan)


@final
class _Followed:
    """Ops that somebody looks at before they are read."""

    def __init__(self, ops: Iterable[Op], look: Callable[[Op], None]) -> None:
        self._ops = ops
        self._look = look

    def __iter__(self) -> Iterator[Op]:
        for op in self._ops:
            self._look(op)
            yield op
