"""The guard of a rank under torchrun: a process that reports how the rank ended, or where it stands still.

    rank 0 ── guard 0 ─┐                          ┌─ guard 2 ── rank 2
                       ├── board in torchrun's ───┤
    rank 1 ── guard 1 ─┘         store            └─ guard 3 ── rank 3

A rank that is killed, stopped or hangs in a library cannot report, so its guard does. The guard shares a page with the
rank, notices its end at once, and writes its position on the board several times a second. The first cause of the end
of the run that is written is the verdict; every guard then ends its rank. The guard of rank 0 detects a standstill of
all ranks. A guard ends with its rank.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, final

from pipesched.executor import NOBODY, failed
from pipesched.executor.launch.early_drain import DrainPage, LeaveRequest
from pipesched.executor.launch.guard_board import GuardBoard, Sighting
from pipesched.executor.launch.progress_page import ProgressPage, Whereabouts
from pipesched.executor.launch.standstill import RankState, Stillness, is_stopped_at, state_of
from pipesched.executor.launch.standstill_report import StackFile, reported_standstill, stacks_in
from pipesched.executor.launch.verdict_store import EndingCause, is_told_here
from pipesched.profiles.processes import end_with, exit_code_of
from pipesched.schedules import Op, printable

LEFT, FAILED, LOST, TOLD = "left", "failed", "lost", "told"
"""Messages of a rank to its guard: done; the cause of its failure; the peer it lost; the signal that ends it."""
END = b"end"
"""Message of a guard to its rank."""
MESSAGE_BYTES = 2**16
"""Longest message."""
VERDICT_S = 1.0
"""Time that a rank which has lost a peer waits for the report of the cause [s]."""

_TICK_S = 0.1
_NOT_HEARD_S = 1.0
"""Time after which a rank counts as waiting for nobody if its guard is silent [s]."""
_STACKS_S = 1.2
_TOLD_S = 0.5
"""Time that the guard of a rank ended by its agent waits for the report of another cause [s]; less than `VERDICT_S`."""
_ENDING_S = 0.3
"""Time of a rank to end by itself [s]."""
_LEASH_S = 2.0
"""Longest life of a guard after its rank if the store does not answer [s]."""
_AGENT_S = 0.05
"""Time until an agent is gone after its ranks, which the system ends with it [s]."""
_AGENT_GONE = "torchrun's agent, which has started it, is gone"
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


@dataclass(frozen=True, slots=True)
class Guarded:
    """The rank of a guard, and its run.

    Attributes:
        rank: The rank.
        pid: Process id of the rank.
        agent: Process id of the torchrun agent that started the rank.
        page: Page with the position of the rank.
        stacks: File with the thread stacks of the rank.
        connection: Connection to the rank, with message boundaries.
        num_ranks: Ranks of the run.
        ops_of: Returns the lowered list of a rank.
        timeout_s: Longest wait of a rank for one message.
        is_on_cpus: Whether ranks compute on CPUs, so that a posted message has been sent.
        drain_page: Page with the early end of the lists.
        request: Decides when a run that is asked to leave is drained, or None if the run drains itself.
    """

    rank: int
    pid: int
    agent: int
    page: ProgressPage
    stacks: int
    connection: socket.socket
    num_ranks: int
    ops_of: Callable[[int], Iterable[Op]]
    timeout_s: float
    is_on_cpus: bool
    drain_page: DrainPage
    request: LeaveRequest | None


def be_guard(guarded: Guarded) -> NoReturn:
    """Guard the rank that has forked this process, until it is over."""
    try:
        for told in _IGNORED:
            signal.signal(told, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        agent, rank = os.pidfd_open(guarded.agent), os.pidfd_open(guarded.pid)
        end_with(guarded.pid, signal.SIGCONT)  # a stopped guard continues when its rank has ended
        threading.Thread(target=_leash, args=(rank,), daemon=True).start()
        _Guard(guarded, rank, agent).watch()
    except ProcessLookupError:
        pass  # it was gone at once
    finally:
        sys.stderr.flush()
        os._exit(0)


def heard(connection: socket.socket) -> str:
    """Return the next message, or an empty one if the other end is closed."""
    try:
        return connection.recv(MESSAGE_BYTES).decode()
    except ConnectionError:
        return ""


def _leash(rank: int) -> NoReturn:
    select.select([rank], [], [])
    time.sleep(_LEASH_S)
    os._exit(0)


@final
class _Guard:
    """Watches one rank.

    Args:
        guarded: The rank and its run.
        process: File descriptor of the rank's process.
        agent: File descriptor of the agent's process.
    """

    def __init__(self, guarded: Guarded, process: int, agent: int) -> None:
        self._guarded, self._process, self._agent = guarded, process, agent
        self._board: GuardBoard | None = None
        self._lost: str | None = None
        self._lost_s = 0.0
        self._count = 0
        self._has_written_stacks = False
        self._stillness = Stillness(guarded.timeout_s)
        self._heard: dict[int, tuple[int, float]] = {}
        self._is_over = False
        self._has_shown = False

    def watch(self) -> None:
        """Watch until the rank is over."""
        connection = self._guarded.connection
        with suppress(RuntimeError):
            self._board = GuardBoard()
        while not self._is_over:
            ready = select.select([connection.fileno(), self._process], [], [], _TICK_S)[0]
            if connection.fileno() in ready:
                self._hear(heard(connection))
            elif self._process in ready:
                self._say_its_end()
            else:
                self._look()

    def _hear(self, message: str) -> None:
        kind, _, text = message.partition(" ")
        match kind:
            case "":  # the other end is closed: with the process, or behind its work
                self._say_its_end()
            case "left":
                self._is_over = True
            case "failed":
                self._decide(text)  # which the rank prints
                self._is_over = True
            case "told":
                self._is_over = True
                self._tell_late(f"torchrun's agent has ended it by {text}")
            case "lost":
                self._lost, self._lost_s = text, time.monotonic()

    def _decide(self, text: str) -> EndingCause | None:
        """Write the cause of the end of the run; return the first cause that was written, or None without a store."""
        with suppress(RuntimeError):
            return None if self._board is None else self._board.decide(text)
        return None

    def _tell(self, text: str) -> EndingCause:
        """Write the cause of the end of the run, and print it if it is the first; return the first cause."""
        verdict = self._decide(text) or EndingCause(-1, text)
        self._show(verdict, is_own=verdict.text == text)
        return verdict

    def _show(self, verdict: EndingCause, *, is_own: bool = False) -> None:
        """Print the verdict once per node: by the guard that wrote it, and by the first guard of each other node."""
        if (is_own or is_told_here(verdict)) and not self._has_shown:
            self._has_shown = True
            print(f"executor: {printable(verdict.text)}", file=sys.stderr, flush=True)

    def _tell_late(self, reason: str) -> None:
        """Report the cause if no other is reported within a moment: an agent ends ranks because another rank failed."""
        until_s = time.monotonic() + _TOLD_S
        with suppress(RuntimeError):
            while self._board is not None and self._board.verdict() is None and time.monotonic() < until_s:
                time.sleep(_TICK_S / 5)
        self._tell(self._named(reason))

    def _named(self, reason: str) -> str:
        return str(failed(self._guarded.rank, self._guarded.page.read_host(0).op, reason))

    def _say_its_end(self) -> None:
        """Say how the rank's process ended, unless the run has ended before."""
        self._is_over = True
        select.select([self._process], [], [], _ENDING_S)
        code = exit_code_of(self._guarded.pid)  # before the agent has asked for it, which comes soon
        if code == -signal.SIGKILL and select.select([self._agent], [], [], _AGENT_S)[0]:
            reason = _AGENT_GONE
        elif code is None:
            reason = "its process ended before its list did"
        elif code < 0:
            reason = f"the process was killed by signal {-code}"
        else:
            reason = f"the process ended with exit code {code} before its list did"
        self._tell(self._named(reason))

    def _look(self) -> None:
        """Exchange the position of the rank and the verdict with the board; end the rank if the run has ended."""
        try:
            if self._board is not None:
                verdict = self._exchanged(self._board)
                if verdict is not None:
                    self._show(verdict)
                    self._write_stacks(self._board, is_over=True)
                    self._end()
                    return
        except RuntimeError:
            self._board = None
        if self._lost is not None and time.monotonic() > self._lost_s + VERDICT_S:
            self._tell(self._lost)
            self._end()
        elif self._board is None:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            is_own = bool(select.select([self._agent], [], [], _AGENT_S)[0])
            self._tell(
                self._named(_AGENT_GONE if is_own else f"torchrun's store at {where} is gone, and with it an agent")
            )
            self._end()

    def _exchanged(self, board: GuardBoard) -> EndingCause | None:
        if self._guarded.request is not None:
            self._guarded.drain_page.write(board.drain_agreement())
        board.write(self._guarded.rank, self._seen())
        verdict = board.verdict()
        if verdict is not None:
            return verdict
        self._write_stacks(board)
        if self._guarded.rank > 0 or self._lost is not None:
            return None
        ranks = range(self._guarded.num_ranks)
        sightings = {rank: Sighting() for rank in ranks} | board.read(ranks)
        if self._guarded.request is not None:
            board.agree_on_drain(self._guarded.drain_page.agreement, sightings.values(), self._guarded.request)
        return self._judged(board, sightings)

    def _seen(self) -> Sighting:
        where = self._guarded.page.read(0)
        is_stopped = is_stopped_at(where)
        if is_stopped:
            where = self._guarded.page.read_host(0)
        state = state_of(self._guarded.rank, where, is_stopped=is_stopped)
        self._count += 1
        page = self._guarded.drain_page
        return Sighting(
            self._count,
            where.place,
            where.num_ops,
            state.at_op_s,
            state.whom,
            state.waits_s,
            state.is_stopped,
            where.text,
            page.is_asked,
            page.agreement.proposed,
            page.read,
        )

    def _write_stacks(self, board: GuardBoard, *, is_over: bool = False) -> None:
        """Write the stacks of the rank on request; for a stopped rank, which must continue, only after the run."""
        if self._has_written_stacks or not board.are_stacks_asked_for():
            return
        if is_over or not is_stopped_at(self._guarded.page.read(0)):
            self._has_written_stacks = True
            own = {0: StackFile(self._guarded.pid, Path(f"/proc/self/fd/{self._guarded.stacks}"))}
            board.write_stacks(self._guarded.rank, stacks_in(own).get(0, ""))

    def _judged(self, board: GuardBoard, sightings: Mapping[int, Sighting]) -> EndingCause | None:
        """Return at which rank all stand still, with a report; None if they move."""
        places = {rank: self._place(rank, sighting) for rank, sighting in sightings.items()}
        is_one_stopped = any(sighting.is_stopped for sighting in sightings.values())
        if not self._stillness.is_over([*places.values()], lambda: is_one_stopped):
            return None
        states = {rank: state_of(rank, where, is_stopped=sightings[rank].is_stopped) for rank, where in places.items()}
        reported_standstill(
            states,
            places,
            self._guarded.ops_of,
            lambda error: self._stacks_behind(board, str(error), states),
            is_on_cpus=self._guarded.is_on_cpus,
        )
        return board.verdict()

    def _place(self, rank: int, sighting: Sighting) -> Whereabouts:
        """Return the position of a rank, by the clock of this machine."""
        now_s = time.monotonic()
        count, heard_s = self._heard.get(rank, (-1, now_s))
        if count != sighting.number:
            heard_s = now_s
        self._heard[rank] = sighting.number, heard_s
        is_heard = now_s - heard_s < _NOT_HEARD_S
        since_ns, waits_since_ns = ((heard_s - age_s) * 1e9 for age_s in (sighting.at_op_s, sighting.waits_s))
        whom = sighting.whom if is_heard else NOBODY
        return Whereabouts(
            sighting.place, sighting.num_ops, int(since_ns), int(waits_since_ns), whom, text=sighting.text
        )

    def _stacks_behind(self, board: GuardBoard, text: str, states: Mapping[int, RankState]) -> Mapping[int, str] | None:
        """Write the cause of the end of the run; return the stacks of all ranks, or None if another cause came first.

        A stopped rank continues only when the verdict is written, so that all ranks print it however they end.
        """
        board.ask_for_stacks()
        self._write_stacks(board)
        self._awaited_stacks(board, [rank for rank, state in states.items() if not state.is_stopped])
        if self._tell(text).text != text:
            return None
        self._write_stacks(board, is_over=True)
        return self._awaited_stacks(board, states)

    def _awaited_stacks(self, board: GuardBoard, ranks: Collection[int]) -> Mapping[int, str]:
        """Return the stacks of `ranks`, without the ranks that are late."""
        until_s = time.monotonic() + _STACKS_S
        while len(stacks := board.read_stacks(ranks)) < len(ranks) and time.monotonic() < until_s:
            time.sleep(_TICK_S / 5)
        return stacks

    def _end(self) -> None:
        """End the rank, as the run has ended."""
        self._is_over = True
        with suppress(OSError):
            self._guarded.connection.sendall(END)
        if not select.select([self._process], [], [], _ENDING_S)[0]:
            with suppress(ProcessLookupError):
                os.kill(self._guarded.pid, signal.SIGKILL)
