"""The board of a run under torchrun: messages between the watches of all ranks, on any machine, in torchrun's store."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import NamedTuple, final

from torch._C._distributed_c10d import PrefixStore, TCPStore

from pipesched.executor import START_S
from pipesched.executor.launch.early_drain import DrainAgreement, LeaveRequest
from pipesched.executor.launch.sighting import ProcessFiles, Sighting

_PATIENCE = timedelta(seconds=5)
"""Longest time of one answer of the store."""
_VERDICT = "verdict"
_STACKS = "stacks"
_STACKS_ASKED = "ask for stacks"
_DRAIN = "drain"


class EndingCause(NamedTuple):
    """The cause of the end of the run.

    Attributes:
        process: Number of the process that reported the cause.
        text: The message.
    """

    process: int
    text: str


@final
class RunBoard:
    """Messages between the watches of all ranks. Processes are numbered as by torchrun.

    Args:
        process: Number of this process.

    Raises:
        RuntimeError: The store is gone, here as in every method.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=START_S), wait_for_workers=False)
        store.set_timeout(_PATIENCE)
        self._store = PrefixStore(f"pipesched.watch{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        self._known: set[str] = set()

    def introduce(self, files: ProcessFiles) -> None:
        """Write the files of this process."""
        self._store.set(f"files{self._process}", json.dumps(files))

    def files(self, processes: Iterable[int]) -> dict[int, ProcessFiles]:
        """Return the files of `processes`, without the processes that have written none."""
        return {process: ProcessFiles(*json.loads(text)) for process, text in self._texts("files", processes).items()}

    def write(self, process: int, sighting: Sighting) -> None:
        """Write the position of the rank of a process."""
        self._store.set(f"sighting{process}", json.dumps(sighting))

    def read(self, processes: Iterable[int]) -> dict[int, Sighting]:
        """Return the sightings of `processes`, without the processes that nobody has seen."""
        return {process: Sighting(*json.loads(text)) for process, text in self._texts("sighting", processes).items()}

    def decide(self, text: str) -> EndingCause:
        """Write the cause of the end of the run; return the first cause that was written."""
        own = EndingCause(self._process, text)
        return _cause(self._store.compare_set(_VERDICT, "", json.dumps(own))) or own

    def verdict(self) -> EndingCause | None:
        """Return the cause of the end of the run, or None while the run continues."""
        return _cause(self._store.compare_set(_VERDICT, "", ""))

    def agree_on_drain(self, agreement: DrainAgreement, sightings: Collection[Sighting], request: LeaveRequest) -> None:
        """Write the next state of the agreement on an early drain, if the run is to leave and all ranks know the last.

        Args:
            agreement: The last state, as the calling process knows it.
            sightings: Positions of all ranks.
            request: Decides when the run is drained.
        """
        is_late = request.is_late(is_asked=any(sighting.is_asked for sighting in sightings))
        if is_late and not agreement.decided and all(sighting.proposed == agreement.proposed for sighting in sightings):
            following = agreement.following(max(sighting.read for sighting in sightings), request)
            self._store.set(f"{_DRAIN}0", json.dumps(following))

    def drain_agreement(self) -> DrainAgreement:
        """Return the last state of the agreement on an early drain."""
        return DrainAgreement(*json.loads(self._texts(_DRAIN, [0]).get(0, "[]")))

    def ask_for_stacks(self) -> None:
        """Ask for the stacks of all ranks."""
        self._store.set(_STACKS_ASKED, "")

    def are_stacks_asked_for(self) -> bool:
        """Return whether stacks are requested."""
        return self._store.check([_STACKS_ASKED])

    def write_stacks(self, process: int, text: str) -> None:
        """Write the thread stacks of a process."""
        self._store.set(f"{_STACKS}{process}", text)

    def read_stacks(self, processes: Iterable[int]) -> dict[int, str]:
        """Return the thread stacks of `processes`, without the processes for which nobody has written any."""
        return self._texts(_STACKS, processes)

    def _texts(self, name: str, numbers: Iterable[int]) -> dict[int, str]:
        """Return the values of the existing keys with this name and `numbers`; the store would wait for others."""
        keys = {number: f"{name}{number}" for number in numbers}
        for key in keys.values():
            if key not in self._known and self._store.check([key]):
                self._known.add(key)
        there = {number: key for number, key in keys.items() if key in self._known}
        values = self._store.multi_get([*there.values()]) if there else []
        return {number: value.decode() for number, value in zip(there, values, strict=True)}


def _cause(value: bytes) -> EndingCause | None:
    return EndingCause(*json.loads(value)) if value else None
