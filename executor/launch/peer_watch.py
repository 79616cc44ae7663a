"""The watch that the ranks of one machine keep over each other, where no launcher of ours does: under torchrun.

A rank that has lost a peer says whose process is gone. Each has a thread beside its list. When one has waited for too
long, the first rank that can says at which rank all stand still, ends what is stopped, and itself; the agent then
ends the others. Told to end by the agent, a rank first lets those go on that are stopped, which could not end before.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from pipesched.executor import STACKS, PeerLost, RankFailed
from pipesched.executor.launch.control import gather_texts
from pipesched.executor.launch.progress_page import ProgressPage, Whereabouts
from pipesched.executor.launch.rank_context import RankContext
from pipesched.executor.launch.standstill import Stillness, death, op_at, state_of
from pipesched.executor.launch.standstill_report import StackFile, reported_standstill
from pipesched.profiles.processes import end_with, is_stopped
from pipesched.schedules import Op

_LOOK_S, _GONE_S = 0.2, 0.3
_FAILED = 3
"""The exit code of a rank that has failed."""


def is_under_agent() -> bool:
    """Return whether an agent of torchrun has started this process, and this module's functions can do their work."""
    return "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux"


@final
class PeerWatch:
    """This rank's part in the watch; the process is a rank and nothing else, and ends with torchrun's agent.

    Args:
        timeout_s: How long one message may keep a rank waiting.
    """

    def __init__(self, timeout_s: float) -> None:
        end_with(os.getppid())
        self._timeout_s = timeout_s
        self._page: ProgressPage | None = None

    def at(self, index: int) -> None:
        """Note the position of the op that this rank is at."""
        if self._page is not None:
            self._write(index)

    @contextmanager
    def beside(self, context: RankContext, ops_of: Callable[[int], Iterable[Op]]) -> Iterator[None]:
        """Watch while the lists run, if all ranks are on this machine; all ranks call this together.

        Args:
            context: Context of this rank.
            ops_of: Returns the lowered list of a rank.
        """
        file, stacks = os.memfd_create("pipesched-progress"), os.memfd_create("pipesched-stacks")
        own = f"{socket.gethostname()} /proc/{os.getpid()}/fd/{file} /proc/{os.getpid()}/fd/{stacks}"
        names = [text.split(" ") for text in gather_texts(own, context.control)]
        if len({host for host, _, _ in names}) > 1:
            os.close(file)
            os.close(stacks)
            yield
            return
        faulthandler.register(STACKS, stacks)  # before anybody knows the process: the signal would end it
        self._stacks = [Path(name) for _, _, name in names]
        page = ProgressPage.create(Path(names[0][1]), len(names)) if context.rank == 0 else None
        context.meet()
        self._page = page = page or ProgressPage(Path(names[0][1]))
        self._write = page.writer(context.rank)
        context.meet()
        os.close(file)
        self._rank, self._num_ranks, self._ops_of = context.rank, len(names), ops_of
        self._is_on_cpus = context.device.type == "cpu"
        bell, ring = socket.socketpair()
        ring.setblocking(False)
        before = signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        handler = signal.signal(signal.SIGTERM, lambda *_: None)  # with a handler, it rings
        thread = threading.Thread(target=self._watch, args=(bell,), daemon=True)
        thread.start()
        try:
            yield
        except PeerLost as error:
            raise self._death() or error from error
        finally:
            page.leave(self._rank)
            signal.signal(signal.SIGTERM, handler)
            signal.set_wakeup_fd(before)
            ring.close()  # which ends the thread
            thread.join()
            bell.close()
            faulthandler.unregister(STACKS)
            os.close(stacks)

    def _watch(self, bell: socket.socket) -> None:
        assert self._page is not None, "it watches"
        stillness = Stillness(self._timeout_s)
        while True:
            if select.select([bell], [], [], _LOOK_S)[0]:
                told = bell.recv(64)
                if not told:
                    return
                if signal.SIGTERM in told:
                    self._let_go_on()
                    self._page.leave(self._rank)
                    os._exit(128 + signal.SIGTERM)
            if stillness.is_over(self._places()):
                self._end()

    def _death(self) -> RankFailed | None:
        """Return the error that names a rank whose process has ended without a word; None if there is none.

        A connection may be closed a moment before the process is gone.
        """
        until_s = time.monotonic() + _GONE_S
        while True:
            error = death(dict(enumerate(self._places())), self._ops_of)
            if error is not None or time.monotonic() > until_s:
                return error
            time.sleep(_GONE_S / 10)

    def _places(self) -> list[Whereabouts]:
        assert self._page is not None, "it watches"
        return [self._page.read(rank) for rank in range(self._num_ranks)]

    def _end(self) -> None:
        """End the rank at which all stand still, and this one, if this is the one to do it."""
        assert self._page is not None, "it watches"
        places = self._places()
        states = {
            rank: state_of(rank, op_at(self._ops_of(rank), where.place), where) for rank, where in enumerate(places)
        }
        able = [rank for rank, state in states.items() if not state.is_stopped]
        if self._rank != min(able):
            return
        files = {rank: StackFile(where.pid, self._stacks[rank]) for rank, where in enumerate(places) if where.pid > 0}
        error = reported_standstill(states, dict(enumerate(places)), self._ops_of, files, is_on_cpus=self._is_on_cpus)
        print(f"executor: {error}", file=sys.stderr, flush=True)
        for rank, state in states.items():
            if state.is_stopped and rank in files:
                with suppress(ProcessLookupError):
                    os.kill(files[rank].pid, signal.SIGKILL)
        self._page.leave(self._rank)  # so that nobody takes it for the one at which all stood still
        os._exit(_FAILED)

    def _let_go_on(self) -> None:
        """Let all go on that are stopped."""
        for place in self._places():
            if place.pid > 0 and is_stopped(place.pid):
                with suppress(ProcessLookupError):
                    os.kill(place.pid, signal.SIGCONT)
