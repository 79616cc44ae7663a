"""The watch of a rank under torchrun: a thread in its process that reports the rank, and notices silent ranks.

    node 0   rank 0 ◄──► rank 1         the ranks of a node see each other's pages and the ends of their processes
                │           │
             board in torchrun's store  every thread reports its rank there, ten times a second
                │           │
    node 1   rank 2 ◄──► rank 3

A rank that is killed, stopped or hangs with Python's lock falls silent. Then the first rank of its node that still
reports also reports the silent rank, from its page. The first reporting rank of the run, the judge, detects a
standstill of all ranks. The first cause of the end of the run on the board is the verdict; every thread then ends its
process.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, final

from pipesched.executor import NOBODY, STOP_SIGNALS, failed
from pipesched.executor.launch.early_drain import DrainPage, LeaveRequest
from pipesched.executor.launch.progress_page import ProgressPage, RankState
from pipesched.executor.launch.run_board import EndingCause, RankReport, RunBoard
from pipesched.executor.launch.siblings import ENDED, ProcessFiles, Sibling
from pipesched.executor.launch.standstill import Stillness, reported_standstill, stacks_in
from pipesched.schedules.common import printable
from pipesched.schedules.ops import Op

FAILED = 3
"""Exit code of a rank that ends because the run has failed."""
SILENT_S = 1.0
"""Time without a report after which a process counts as silent [s]."""
LOST_S = 2.0
"""Time that a rank which has lost a peer waits for the report of the cause [s]."""

_TICK_S = 0.1
"""Time between two exchanges with the board [s]."""
_ALL_STACKS_S = 1.2
"""Time that all nodes may take to write stacks; longer than one node takes [s]."""
_TOLD_S = 0.5
"""Time that a rank ended by its agent waits for the report of another cause [s]."""


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """The run of a watched rank.

    Attributes:
        ranks: The rank of every process.
        ops_of: Returns the lowered list of a rank.
        timeout_s: Longest wait of a rank for one message.
        is_on_cpus: Whether ranks compute on CPUs, where a message is sent as soon as it is posted.
        request: Decides when a run that is asked to leave is drained, or None if the run drains itself.
    """

    ranks: Sequence[int]
    ops_of: Callable[[int], Iterable[Op]]
    timeout_s: float
    is_on_cpus: bool
    request: LeaveRequest | None = None


@dataclass(slots=True)
class WatchedRank:
    """The only rank of a process: its main thread sets this state, and its watch reads it.

    Attributes:
        page: Page with the position of the rank.
        drain_page: Page with the early end of the lists.
        at: Notes on the page the op that the rank is at, and its position.
        run: The run, or None while the job is read.
        lost: The error of a rank that has lost a peer, or None.
        is_done: Whether the list is over: the end of the process no longer ends the run.
    """

    page: ProgressPage
    drain_page: DrainPage
    at: Callable[[int, Op], None] = lambda index, op: None  # noqa: ARG005
    run: WatchedRun | None = None
    lost: str | None = None
    is_done: bool = False


@final
class RankWatch:
    """Watches the rank of this process and the ranks beside it.

    Args:
        status: The state of the rank.
        board: The board of the run.
        process: Number of this process.
        node: Numbers of the processes of this node, this one included.
        files: Files of this process.
        leave: Ends this process with an exit code.
    """

    def __init__(
        self,
        status: WatchedRank,
        board: RunBoard,
        process: int,
        node: Sequence[int],
        files: ProcessFiles,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._status, self._board, self._process, self._node, self._leave = status, board, process, node, leave
        self._stacks = files.stack_file
        self._siblings = dict[int, Sibling]()
        self._heard = dict[int, tuple[RankReport, float]]()  # when it came here, by the clock of this machine
        self._count = 0
        self._signal: signal.Signals | None = None
        self._since_s: float | None = None
        self._written = set[int]()
        self._has_shown = False
        self._stillness: Stillness | None = None
        board.introduce(files)

    def watch(self, bell: socket.socket) -> None:
        """Watch until `bell` is closed; end this process if the run ends.

        Args:
            bell: Receives the number of every signal that comes to this process.
        """
        while True:
            watched = {sibling.descriptor: number for number, sibling in self._running()}
            for descriptor in select.select([bell.fileno(), *watched], [], [], _TICK_S)[0]:
                if descriptor in watched:
                    self._report_end(watched[descriptor])
                elif numbers := bell.recv(64):
                    self._note_signal(numbers)
                else:
                    with suppress(RuntimeError):
                        self._write(self._process, self._own_report(is_over=True))
                    return
            self.look()

    def _running(self) -> list[tuple[int, Sibling]]:
        """Return the siblings whose ranks are not over, by the numbers of their processes."""
        return [(number, sibling) for number, sibling in self._siblings.items() if sibling.is_running]

    def _note_signal(self, numbers: bytes) -> None:
        """Note a signal that ends this process; the watch leaves when the cause is known."""
        for number in STOP_SIGNALS:
            if number in numbers and self._signal is None:
                self._signal = number
                if self._status.is_done:
                    self._leave(128 + number)

    def _report_end(self, number: int) -> None:
        """Report how the process of a sibling ended, unless its rank was over."""
        sibling = self._siblings[number]
        if sibling.is_running:
            with suppress(RuntimeError):
                self._report(self._named(number, sibling.op, sibling.ending()))

    def _report(self, text: str) -> EndingCause:
        """Write the cause of the end of the run, and print it if it is the first; return the first cause."""
        verdict = self._board.decide(text)
        self._show(verdict)
        return verdict

    def _show(self, verdict: EndingCause) -> None:
        """Print the verdict once per node: by its author, and by the first process of each other node."""
        is_own = verdict.process == self._process
        if (is_own or (verdict.process not in self._node and self._is_first(self._node))) and not self._has_shown:
            self._has_shown = True
            _print(verdict.text)

    def _named(self, process: int, op: Op | None, reason: str) -> str:
        """Return the reason with the rank of a process, or the number of the process while the job is read."""
        run = self._status.run
        if run is None:
            return f"process {process} failed before reading its job: {reason}"
        return str(failed(run.ranks[process], op, reason))

    def _named_here(self, reason: str) -> str:
        return self._named(self._process, self._status.page.read_host(0).op, reason)

    def look(self) -> None:
        """Exchange positions and the verdict with the board; end this process if the run has ended."""
        try:
            verdict = self._exchanged() or self._own_verdict()
            if verdict is None:
                return
            self._show(verdict)
            self._write_stacks(is_over=True)
        except RuntimeError:
            if self._status.is_done:
                return
            gone = f"torchrun's store at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} is gone"
            lost = self._status.lost
            _print(self._named_here(f"{gone}, and with it an agent") if lost is None else f"{lost}; {gone}")
        self._end()

    def _end(self) -> None:
        """End this process, and its siblings that cannot end by themselves."""
        for number, sibling in self._running():
            if not self._is_heard(number) or sibling.is_stopped:
                sibling.kill()
        self._leave(FAILED if self._signal is None else 128 + self._signal)

    def _exchanged(self) -> EndingCause | None:
        run = self._status.run
        if run is not None and run.request is not None:
            self._status.drain_page.write(self._board.drain_agreement())
        self._write(self._process, self._own_report())
        verdict = self._board.verdict()
        if verdict is not None:
            return verdict
        self._read_reports(number for number in self._node if number != self._process)
        self._meet()
        if self._is_first(self._node):
            for number, sibling in self._running():
                if not self._is_heard(number):
                    self._write(number, RankReport(is_own=False, state=sibling.page.look(0)))
        self._write_stacks()
        return self._judged(run) if run is not None and self._is_judge() else None

    def _own_verdict(self) -> EndingCause | None:
        """Return the cause that this rank knows, if no other is reported within a moment."""
        if self._status.lost is None and self._signal is None:
            return None
        now_s = time.monotonic()
        self._since_s = self._since_s or now_s
        if self._status.lost is not None:
            return self._report(self._status.lost) if now_s > self._since_s + LOST_S else None
        assert self._signal is not None, "either a peer is lost or a signal came"
        told = self._named_here(f"torchrun's agent has ended it by {self._signal.name}")
        return self._report(told) if now_s > self._since_s + _TOLD_S else None

    def _write(self, process: int, report: RankReport) -> None:
        self._count += 1
        self._board.write(process, report._replace(number=self._count))

    def _own_report(self, *, is_over: bool = False) -> RankReport:
        page = self._status.drain_page
        return RankReport(
            state=self._status.page.look(0),
            has_lost=self._status.lost is not None,
            is_over=is_over,
            is_asked=page.is_asked,
            proposed=page.agreement.proposed,
            read=page.read,
        )

    def _meet(self) -> None:
        """Open the pages of the siblings that have introduced themselves."""
        unknown = [number for number in self._node if number != self._process and number not in self._siblings]
        for number, files in self._board.files(unknown).items():
            try:
                self._siblings[number] = Sibling(files)
            except OSError:  # it is gone
                if not self._status.is_done:
                    self._report(self._named(number, self._state(number).op, ENDED))

    def _read_reports(self, processes: Iterable[int]) -> None:
        """Read the new reports on other processes."""
        for number, report in self._board.read(processes).items():
            if number not in self._heard or self._heard[number][0] != report:
                self._heard[number] = report, time.monotonic()

    def _state(self, process: int) -> RankState:
        """Return the last reported state of a process's rank, updated to now; a silent rank waits for nobody."""
        report, heard_s = self._heard.get(process, (RankReport(), time.monotonic()))
        state, age_s = report.state, time.monotonic() - heard_s
        silent_s = age_s if age_s > SILENT_S else 0.0
        return state._replace(
            at_op_s=state.at_op_s + age_s,
            waits_s=state.waits_s + age_s,
            whom=NOBODY if silent_s else state.whom,
            silent_s=silent_s,
        )

    def _is_heard(self, process: int) -> bool:
        """Return whether a process has reported its rank lately."""
        if process == self._process:
            return True
        return process in self._heard and self._heard[process][0].is_own and not self._state(process).silent_s

    def _is_first(self, processes: Iterable[int]) -> bool:
        """Return whether this process is the first of `processes` that still reports."""
        return next(number for number in processes if self._is_heard(number)) == self._process

    def _is_judge(self) -> bool:
        for number in range(self._process):
            self._read_reports([number])
            if self._is_heard(number):
                self._stillness = None
                return False
        return True

    def _judged(self, run: WatchedRun) -> EndingCause | None:
        """Return the cause of the end of the run if a rank is lost or all stand still; None if they move."""
        processes = range(len(run.ranks))
        self._read_reports(processes)
        self._heard[self._process] = self._own_report(), time.monotonic()
        reports = [self._heard[number][0] if number in self._heard else RankReport() for number in processes]
        states = {rank: self._state(number)._replace(rank=rank) for number, rank in enumerate(run.ranks)}
        if run.request is not None and self._process == 0:  # two judges might propose different ends
            self._board.agree_on_drain(self._status.drain_page.agreement, reports, run.request)
        if any(report.has_lost for report in reports):
            return self._lost(reports, states)
        self._stillness = self._stillness or Stillness(run.timeout_s)
        if not self._stillness.is_over([*states.values()], lambda: any(state.is_stopped for state in states.values())):
            return None
        states = dict(sorted(states.items()))
        reported_standstill(
            states, run.ops_of, lambda error: self._stacks_behind(str(error), run, states), is_on_cpus=run.is_on_cpus
        )
        return self._board.verdict()

    def _lost(self, reports: Iterable[RankReport], states: Mapping[int, RankState]) -> EndingCause | None:
        """Report a process that is silent while another rank has lost a connection; return the cause, or None."""
        for report, state in zip(reports, states.values(), strict=True):
            if state.silent_s and not report.is_over:
                reason = f"nothing has been heard of its process for {state.silent_s:.1f} s, and connections to it are"
                return self._report(str(failed(state.rank, state.op, f"{reason} closed")))
        return None

    def _write_stacks(self, *, is_over: bool = False) -> None:
        """Write the stacks of the ranks of this node on request, and at the end the stacks of stopped ranks."""
        if not self._is_first(self._node) or not self._board.are_stacks_asked_for():
            return
        files = {} if self._process in self._written else {self._process: self._stacks}
        for number, sibling in self._running():
            if number not in self._written and (is_over or not sibling.is_stopped):
                files[number] = sibling.stacks
        self._written.update(files)
        for number, text in stacks_in(files).items():
            self._board.write_stacks(number, text)

    def _stacks_behind(self, text: str, run: WatchedRun, states: Mapping[int, RankState]) -> Mapping[int, str] | None:
        """Write the cause of the end of the run; return the stacks of all ranks, or None if another cause came first.

        A stopped rank continues only when the verdict is written, so that all ranks print it however they end.
        """
        self._board.ask_for_stacks()
        self._write_stacks()
        present = [number for number, rank in enumerate(run.ranks) if not states[rank].silent_s]
        self._awaited_stacks([number for number in present if not states[run.ranks[number]].is_stopped])
        if self._report(text).text != text:
            return None
        self._write_stacks(is_over=True)
        return {run.ranks[number]: stacks for number, stacks in self._awaited_stacks(present).items()}

    def _awaited_stacks(self, processes: Collection[int]) -> Mapping[int, str]:
        """Return the stacks of `processes`, without the processes that are late."""
        until_s = time.monotonic() + _ALL_STACKS_S
        while len(stacks := self._board.read_stacks(processes)) < len(processes) and time.monotonic() < until_s:
            time.sleep(_TICK_S / 5)
        return stacks


def _print(text: str) -> None:
    print(f"executor: {printable(text)}", file=sys.stderr, flush=True)
