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
from pipesched.executor.launch.progress_page import RankState
from pipesched.executor.launch.siblings import ProcessFiles

_PATIENCE = timedelta(seconds=5)
"""Longest time of one answer of the store."""
_REPORT = "report"
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


class RankReport(NamedTuple):
    """The report of a watch on a rank.

    Attributes:
        number: Number of earlier reports by the same process.
        is_own: Whether the process of the rank reports it itself.
        state: The state of the rank.
        has_lost: Whether the rank has lost the connection to another rank.
        is_over: Whether the rank has ended its list.
        is_asked: Whether the rank is asked to leave.
        proposed: The micro-batch that is proposed as the last one of all lists; -1 if the rank knows no proposal.
        read: The farthest micro-batch that the rank has read, given that proposal.
    """

    number: int = 0
    is_own: bool = True
    state: RankState = RankState()
    has_lost: bool = False
    is_over: bool = False
    is_asked: bool = False
    proposed: int = -1
    read: int = 0


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

    def write(self, process: int, report: RankReport) -> None:
        """Write a report on the rank of a process."""
        self._store.set(f"{_REPORT}{process}", json.dumps(report))

    def read(self, processes: Iterable[int]) -> dict[int, RankReport]:
        """Return the last reports on the ranks of `processes`, without the processes that nobody has seen."""
        reports = {process: RankReport(*json.loads(text)) for process, text in self._texts(_REPORT, processes).items()}
        return {process: report._replace(state=RankState(*report.state)) for process, report in reports.items()}

    def decide(self, text: str) -> EndingCause:
        """Write the cause of the end of the run; return the first cause that was written."""
        own = EndingCause(self._process, text)
        return _cause(self._store.compare_set(_VERDICT, "", json.dumps(own))) or own

    def verdict(self) -> EndingCause | None:
        """Return the cause of the end of the run, or None while the run continues."""
        return _cause(self._store.compare_set(_VERDICT, "", ""))

    def agree_on_drain(self, agreement: DrainAgreement, reports: Collection[RankReport], request: LeaveRequest) -> None:
        """Write the next state of the agreement on an early drain, if the run is to leave and all ranks know the last.

        Args:
            agreement: The last state, as the calling process knows it.
            reports: Reports on all ranks.
            request: Decides when the run is drained.
        """
        is_late = request.is_late(is_asked=any(report.is_asked for report in reports))
        if is_late and not agreement.decided and all(report.proposed == agreement.proposed for report in reports):
            following = agreement.following(max(report.read for report in reports), request)
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
