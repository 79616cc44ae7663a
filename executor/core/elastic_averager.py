"""Elastic averaging: a rank moves its weights to the reference model (AvgPipe, doi:10.1145/3572848.3577484, 3.2).

N pipelines, a = 1/N; u_n is the change by pipeline n's Steps since its last Average, x_ref the reference after the
iterations before, x_n the pipeline's weights before these Steps:

    synchronous    x_n <- (1 - a) (x_n + u_n) + a (x_ref + mean u)     the reference with this iteration's updates
    asynchronous   x_n <- (1 - a) x_n + a x_ref + u_n                  the reference of the iteration before

    synchronous    F B F B  Step  u_0 ──┐          ┌─> Average     every pipeline gives its update, then all wait for
                   F B F B  Step  u_1 ──┴─> x_ref ─┴─> Average     the reference that has all of them
    asynchronous   F B F B  Step  Average  u_0 ──┐
                   F B F B  Step  Average  u_1 ──┴─> x_ref         it is awaited at the next Step only

In both the mean of all x_n is x_ref + mean u, the next reference. The paper leaves open which iteration's reference the
models move to. If it were the one before, with u_n diluted too, their mean would lag behind.

u_n is a difference of weights, so any optimizer works.
"""

from __future__ import annotations

import fcntl
import mmap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from pipesched.executor import EVERYBODY, Averaging, ExecutionError, PeerLost, waiting_for
from pipesched.executor.core.reference_memory import (
    ALIGNED,
    CELLS,
    Averaged,
    Reference,
    Shared,
    memory_bytes,
)
from pipesched.executor.core.streams import RankStreams, Signal

_POLL_S = 1e-4
"""Time between two looks at the memory that processes share [s]."""


class Pool(ABC):
    """The interface of one rank to the reference model of its device.

    Attributes:
        shared: The tensors of each stage.
    """

    shared: Mapping[int, Shared]

    @abstractmethod
    def give(self, stage: int) -> None:
        """Report that this rank's slot of `stage` holds its update."""

    @abstractmethod
    def has(self, stage: int, version: int) -> bool:
        """Return whether the reference has seen `version` iterations; if False, the caller gives up its turn.

        Raises:
            PeerLost: A pool that waits has waited for too long.
        """


@dataclass(slots=True)
class _Updates:
    """The updates of one iteration, on the streams of their ranks.

    Attributes:
        given: Event after each update that is not in the reference yet.
        added: Event after the last sum, or None before the first sum.
    """

    given: list[Signal] = field(default_factory=list)
    added: Signal = None


@final
class LocalPool(Pool):
    """The pool of a rank in one process: the last rank to give its update adds all of them to the reference.

    Args:
        reference: The reference of one stage.
        streams: Streams of the rank.
        updates: The updates, which all ranks share.

    Attributes:
        shared: The tensors of the stage, by its number.
    """

    def __init__(self, reference: Reference, streams: RankStreams, updates: _Updates) -> None:
        self._reference = reference
        self._streams = streams
        self._updates = updates
        self.shared = reference.shared

    def give(self, stage: int) -> None:
        updates = self._updates
        is_last = len(updates.given) + 1 == len(self._reference.shared[stage].slots)
        for given in updates.given if is_last else ():
            self._streams.wait(given, EVERYBODY)
        self._reference.give(stage)
        if is_last:
            updates.given, updates.added = [], self._streams.record()
        else:
            updates.given.append(self._streams.record())

    def has(self, stage: int, version: int) -> bool:
        is_there = self._reference.version(stage) >= version
        if is_there and self._updates.added is not None:
            self._streams.wait(self._updates.added, EVERYBODY)
        return is_there


def local_pools(
    what: Averaged, device: torch.device | None, streams: Mapping[int, RankStreams]
) -> dict[int, LocalPool]:
    """Return the pools of all ranks of one stage, in one process, with a reference on `device`."""
    memory = torch.empty(memory_bytes([what]), dtype=torch.uint8, device=device)
    reference, updates = Reference(memory, [what], [0] * CELLS), _Updates()
    return {rank: LocalPool(reference, streams[rank], updates) for rank in what.ranks}


@final
class SharedPool(Pool):
    """The pool of a rank among the processes of a device: the last rank to give its update adds all of them.

    Args:
        path: A file of `shared_bytes` zeros for `stages`, which each process opens for itself.
        stages: All averaged stages of the device.
        timeout_s: Longest wait for the other pipelines [s].

    Attributes:
        shared: The tensors of each stage.
    """

    def __init__(self, path: Path, stages: Sequence[Averaged], timeout_s: float) -> None:
        self._file = path.open("r+b")
        whole = mmap.mmap(self._file.fileno(), 0)
        begin = ALIGNED * len(stages)  # behind the cells
        memory, cells = torch.frombuffer(whole, dtype=torch.uint8)[begin:], memoryview(whole)[:begin].cast("q")
        self._reference = Reference(memory, stages, cells)
        self._timeout_s = timeout_s
        self.shared = self._reference.shared

    def close(self) -> None:
        """Close the file; the tensors stay valid, but nothing can be given any more."""
        self._file.close()

    def give(self, stage: int) -> None:
        with self._alone(stage):
            self._reference.give(stage)

    def has(self, stage: int, version: int) -> bool:
        """Wait until the reference has seen `version` iterations; always return True.

        Raises:
            PeerLost: The wait took longer than `timeout_s`.
        """
        if not self._is_there(stage, version):
            self._wait(stage, partial(self._is_there, stage, version))
        return True

    def _is_there(self, stage: int, version: int) -> bool:
        with self._alone(stage):  # the lock orders this read after the writes of other processes
            return self._reference.version(stage) >= version

    @contextmanager
    def _alone(self, stage: int) -> Iterator[None]:
        if not self._is_locked():
            self._wait(stage, self._is_locked)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _is_locked(self) -> bool:
        """Return whether no other process has the lock, so that this one has it now."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait(self, stage: int, is_over: Callable[[], bool]) -> None:
        until_s = time.monotonic() + self._timeout_s
        what = f"the updates of the other pipelines of stage {stage}"
        with waiting_for(what):
            while not is_over():
                if time.monotonic() > until_s:
                    raise PeerLost(f"waited {self._timeout_s:g} s for {what}")
                time.sleep(_POLL_S)


def shared_bytes(stages: Sequence[Averaged]) -> int:
    """Return the bytes of the file of a `SharedPool`."""
    return ALIGNED * len(stages) + memory_bytes(stages)


@final
class ElasticAverager:
    """Moves the weights of one stage on one rank to the reference model.

    If an answer is False, the caller gives up its turn and asks again.

    Args:
        stage: The number of the stage.
        rank: The rank that holds it.
        parameters: The parameters that learn; only this rank writes to them.
        shared: The stage's reference, one flat tensor per parameter, written only by the process that adds; and a slot
            of the same shapes for each rank. Only its rank writes to a slot, and only while the reference has its last
            update.
        pool: Reports to the adding process that the slot is full, and knows when the reference is complete.
        averaging: Form of averaging.

    Attributes:
        is_first: Whether no lower rank averages the stage.
    """

    def __init__(
        self, stage: int, rank: int, parameters: Sequence[Tensor], shared: Shared, pool: Pool, averaging: Averaging
    ) -> None:
        self._stage = stage
        self._parameters = parameters
        self._reference = [flat.view(p.shape) for flat, p in zip(shared.reference, parameters, strict=True)]
        self._slot = [flat.view(p.shape) for flat, p in zip(shared.slots[rank], parameters, strict=True)]
        # the weights before a Step, and then their change: on a GPU kept there, else in the slot itself
        self._change = [
            slot if slot.device == p.device else torch.empty_like(p)
            for slot, p in zip(self._slot, parameters, strict=True)
        ]
        self._pool = pool
        self._is_synchronous = averaging == "synchronous"
        self._weight = 1 / len(shared.slots)
        self._num_averages = 0
        self._has_stepped = self._has_given = False
        self.is_first = rank == min(shared.slots)

    @torch.no_grad()
    def begin(self, first_reference: Sequence[Tensor] | None = None) -> None:
        """Set the reference to these tensors (default: this rank's weights, which are equal in all pipelines)."""
        for reference, first in zip(self._reference, first_reference or self._parameters, strict=True):
            reference.copy_(first)

    def held_reference(self) -> Sequence[Tensor]:
        """Return the reference by parameter, with the updates of all pipelines; call it between two runs.

        The reference is empty on all ranks but the first that averages the stage.

        Raises:
            ExecutionError: Some update is missing.
        """
        if not self.is_complete():
            raise ExecutionError(
                "got a reference model without the updates of all pipelines, expected all updates; run all lists to "
                "the end"
            )
        return self._reference if self.is_first else ()

    def resident_bytes(self) -> int:
        """Return the bytes held on the device of the weights; the reference counts at the first rank."""
        held = [*self._change, *(self._reference if self.is_first else ())]
        devices = {parameter.device for parameter in self._parameters}
        return sum(tensor.nbytes for tensor in held if tensor.device in devices)

    def may_step(self) -> bool:
        """Return whether the slot is free: the update of the last iteration is in the reference."""
        return self._has_stepped or self.is_complete()

    def is_complete(self) -> bool:
        """Return whether the reference has the updates of all pipelines, for all iterations of this pipeline."""
        return self._pool.has(self._stage, self._num_averages)

    @torch.no_grad()
    def remember(self) -> None:
        """Keep the weights before a Step, the first since the last Average."""
        if not self._has_stepped:
            for before, parameter in zip(self._change, self._parameters, strict=True):
                before.copy_(parameter)
        self._has_stepped = True

    def may_average(self) -> bool:
        """Return whether the reference is ready; in synchronous averaging, first give the update of this rank.

        Raises:
            ExecutionError: There was no Step since the last Average.
        """
        if not self._has_stepped:
            raise ExecutionError(
                f"stage {self._stage} has not stepped since its last Average, expected a Step between two Averages; "
                "add one"
            )
        if not self._is_synchronous:
            return True  # or it had not been free to step
        if not self._has_given:
            self._subtract()
            self._give()
        return self._pool.has(self._stage, self._num_averages + 1)

    @torch.no_grad()
    def average(self) -> None:
        """Move the weights to the reference."""
        if not self._is_synchronous:
            self._subtract()
        for parameter, reference, update in zip(self._parameters, self._reference, self._change, strict=True):
            parameter.lerp_(reference.to(parameter.device), self._weight)
            if not self._is_synchronous:
                parameter.add_(update, alpha=self._weight)  # then it counts in full
        if not self._is_synchronous:
            self._give()
        self._has_stepped = self._has_given = False
        self._num_averages += 1

    @torch.no_grad()
    def settle(self) -> bool:
        """Set the weights to the reference if it includes all updates; return whether it does."""
        if not self.is_complete():
            return False
        for parameter, reference in zip(self._parameters, self._reference, strict=True):
            parameter.copy_(reference)
        return True

    @torch.no_grad()
    def _subtract(self) -> None:
        for change, parameter in zip(self._change, self._parameters, strict=True):
            torch.sub(parameter, change, out=change)

    def _give(self) -> None:
        for slot, change in zip(self._slot, self._change, strict=True):
            if slot is not change:
                slot.copy_(change)
        self._pool.give(self._stage)
        self._has_given = True
