"""The supervisor starts one process per rank on this machine, watches them, ends them, and names the first that failed.

Processes are numbered by device, as in torchrun; messages name ranks.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import final

from pipesched.executor import EVERYBODY, STOP_SIGNALS, ExecutionError, RankFailed, failed
from pipesched.executor.launch.fork_client import Forked, fork, forks
from pipesched.executor.launch.progress_page import ProgressPage, RankState, is_stopped_at
from pipesched.executor.launch.rank_device import ranks_of_processes
from pipesched.executor.launch.run_spec import RunSpec
from pipesched.executor.launch.standstill import (
    SLACK_S,
    StackFile,
    Stillness,
    longest_wait_s,
    num_begun,
    reported_standstill,
    stacks_in,
)
from pipesched.profiles.processes import environment, num_cores
from pipesched.schedules.common import shortened, shown
from pipesched.schedules.ops import Op

_GRACE_S = 5.0
_POLL_S = 0.02
_READ_BYTES, _LONGEST = 2**16, 1000
"""Bytes read from the end of a log, and characters of its last line in a message."""
_MOST_PER_CORE = 32
"""Processes; each takes some 200 MB before it does anything."""


@contextmanager
def started(
    num_processes: int, module: str, arguments: Sequence[str], folder: Path, *, threads: int = 1, is_fresh: bool = False
) -> Iterator[list[Forked]]:
    """Start processes of a module, numbered as torchrun does; end them all in any case.

    Signals wait until all processes are started: a child could be lost before it is known.

    Args:
        folder: Folder for the output of each process, in ``log0`` and so on.
        threads: CPU threads of each process.
        is_fresh: Whether to start new Pythons instead of forks.

    Raises:
        ExecutionError: There is no network interface for gloo.
    """
    count, processes = str(num_processes), list[Forked]()
    given = environment() | {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "OMP_NUM_THREADS": str(threads)}
    given.setdefault("GLOO_SOCKET_IFNAME", "lo")
    require_interface(given["GLOO_SOCKET_IFNAME"])
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            for number in range(num_processes):
                variables = given | {"RANK": str(number), "LOCAL_RANK": str(number)}
                processes.append(fork(arguments, variables, folder / f"log{number}", module=module, is_fresh=is_fresh))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
        for process in processes:
            process.wait()


@final
class Processes:
    """The processes of a run: each runs ``python -P -m pipesched.executor --folder FOLDER``; the job is in the folder.

    Args:
        folder: Folder of the job, and of the output of the processes.
        spec: Specification of the run.
        rank_to_device: The device of every rank.
        ops_of: Returns the lowered list of a rank.

    Raises:
        ExecutionError: There are too many processes for this machine.
    """

    def __init__(
        self, folder: Path, spec: RunSpec, rank_to_device: Sequence[int], ops_of: Callable[[int], Iterable[Op]]
    ) -> None:
        self._is_single = spec.is_in_one_process
        self._ranks = [*range(len(rank_to_device))] if self._is_single else ranks_of_processes(rank_to_device)
        self._num_processes = 1 if self._is_single else len(self._ranks)
        _require_few(self._num_processes)
        self._folder, self._spec, self._ops_of = folder, spec, ops_of
        self._is_on_cpus = spec.device == "cpu"
        self._processes: list[Forked] = []

    def run(self, on_progress: Callable[[int], None]) -> None:
        """Start all processes and wait for their end; end them all in any case.

        Args:
            on_progress: Called regularly with the number of ops begun by all ranks; may raise to end the run.

        Raises:
            RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch.
        """
        with (
            ProgressPage.create(self._folder / "progress", len(self._ranks)) as self._progress_page,
            started(
                self._num_processes,
                "pipesched.executor.__main__",
                ["--folder", str(self._folder.absolute())],
                self._folder,
                threads=self._spec.threads,
                is_fresh=not forks(self._spec.device),
            ) as self._processes,
        ):
            self._watch(on_progress)

    def _watch(self, on_progress: Callable[[int], None]) -> None:
        stillness = Stillness(self._spec.timeout_s)
        while True:
            codes = [process.poll() for process in self._processes]
            if any(code not in (None, 0) for code in codes):
                raise self._blame()
            if all(code == 0 for code in codes):
                return
            states = self._read_all()
            on_progress(num_begun(states))
            if stillness.is_over(states, partial(self._is_any_stopped, states)):
                raise self._standstill()
            time.sleep(_POLL_S)

    def _is_any_stopped(self, states: Sequence[RankState]) -> bool:
        return self._processes[0].servers_end is not None or any(map(is_stopped_at, states))

    def _read_all(self) -> list[RankState]:
        return [self._progress_page.read(number) for number in range(len(self._ranks))]

    def _blame(self) -> RankFailed:
        """Return the error that names the rank at fault: a killed rank first, then a rank whose own op failed."""
        begun_at = time.monotonic()
        while time.monotonic() < begun_at + _GRACE_S and not self._is_clear(time.monotonic() - begun_at):
            time.sleep(_POLL_S)
        for process in self._processes:
            if process.servers_end is not None:
                return self._servers_end(process.servers_end)
        codes = [process.poll() for process in self._processes]
        for number, code in enumerate(codes):
            if code is not None and code < 0:
                return self._died(number, f"the process was killed by signal {-code}")
        failures = [number for number, code in enumerate(codes) if code not in (None, 0)]
        # a rank that only lost its peer says so in a file of its own; the culprit comes first
        number = min(failures, key=lambda number: (self._has_waited(number), number))
        if self._has_waited(number) and self._progress_page.read(number).num_ops > 0:
            return self._standstill()
        reason = self._reason(number)
        return self._died(number, self._last_words(number, codes[number])) if reason is None else RankFailed(reason)

    def _died(self, number: int, ending: str) -> RankFailed:
        """Return the error for a process that left no report; if it ran all ranks, for the last rank that moved."""
        number = self._last_moved() if self._is_single else number
        return failed(self._ranks[number], self._progress_page.read_host(number).op, ending)

    def _last_moved(self) -> int:
        return max(range(len(self._ranks)), key=self._progress_page.moved_ns)

    def _is_clear(self, after_s: float) -> bool:
        """Return whether the cause of the end of the run is clear, `after_s` seconds after a rank failed.

        The cause is clear if a process was killed or failed by itself, or if all processes have ended. It is also clear
        if a rank has waited for its timeout and no earlier end shows within `SLACK_S`.
        """
        codes = [process.poll() for process in self._processes]
        if all(code is not None for code in codes):
            return True
        if any(code and not self._has_waited(number) for number, code in enumerate(codes)):
            return True
        return after_s > SLACK_S and longest_wait_s(self._read_all()) > self._spec.timeout_s

    def _states(self) -> dict[int, RankState]:
        """Return the state of every rank."""
        states = {}
        for number, rank in enumerate(self._ranks):
            code = self._processes[0 if self._is_single else number].poll()
            ending = None if code is None else self._last_words(number, code)
            state = self._progress_page.look(number, ending)
            if self._is_single and number != self._last_moved():
                state = state._replace(is_stopped=False, whom=EVERYBODY if self._is_on_cpus else state.whom)  # no turn
            states[rank] = state._replace(rank=rank)
        return dict(sorted(states.items()))

    def _standstill(self) -> RankFailed:
        """Return the error for the rank of a standstill, with the stacks of all ranks in a file."""
        fate = self._processes[0].servers_end
        if fate is not None:
            return self._servers_end(fate)
        files = {
            rank: StackFile(pid, self._folder / f"stacks{number}")
            for number, (rank, process) in enumerate(zip(self._ranks, self._processes, strict=not self._is_single))
            if process.poll() is None and (pid := self._progress_page.read(number).pid) > 0
        }
        return reported_standstill(
            self._states(), self._ops_of, lambda _: stacks_in(files), is_on_cpus=self._is_on_cpus
        )

    def _servers_end(self, fate: str) -> RankFailed:
        return RankFailed(f"the process that all ranks are forked from {fate}")

    def _has_waited(self, number: int) -> bool:
        return (self._folder / f"waited{number}").exists()

    def _reason(self, number: int) -> str | None:
        """Return the cause that the process wrote before it ended, or None if it wrote none."""
        for kind in ("error", "waited"):
            if (self._folder / f"{kind}{number}").exists():
                return (self._folder / f"{kind}{number}").read_text()
        return None

    def _last_words(self, number: int, code: int | None) -> str:
        with (self._folder / f"log{number}").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _READ_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return f"the process ended with exit code {code}" + (f": {shortened(lines[-1], _LONGEST)}" if lines else "")


def _require_few(num_processes: int) -> None:
    cores = num_cores()
    if num_processes > _MOST_PER_CORE * cores:
        raise ExecutionError(
            f"ranks: got {num_processes}, each in its own process, expected at most {_MOST_PER_CORE * cores} on this "
            f"machine of {cores} cores; use fewer ranks, or torchrun on several machines"
        )


_GET_ADDRESS = 0x8915
"""Linux: ``SIOCGIFADDR``."""


def require_interface(names: str, has_address: Callable[[str], bool] | None = None) -> None:
    """Refuse names without an address, before gloo searches for one for seconds in every rank.

    Args:
        names: As in ``GLOO_SOCKET_IFNAME``: one interface, or several separated by commas.
        has_address: Returns whether an interface has an address (default: asks the system on Linux, accepts all names
            elsewhere).

    Raises:
        ExecutionError: An interface is missing or has no address; names the usable interfaces.
    """
    if has_address is None:
        if sys.platform != "linux":
            return
        has_address = _has_address
    missing = [name for name in names.split(",") if not has_address(name)]
    if missing:
        usable = [name for _, name in socket.if_nameindex() if has_address(name)]
        expected = f"one of {', '.join(usable)}" if usable else "one that is up"
        advice = f"try GLOO_SOCKET_IFNAME={usable[0]}" if usable else "bring one up, as with 'ip link set lo up'"
        raise ExecutionError(
            f"GLOO_SOCKET_IFNAME: got {shown(missing[0])}, which is no network interface with an address, "
            f"expected {expected}; {advice}"
        )


def _has_address(name: str) -> bool:
    """Return whether an interface has an address, of IPv4 or of IPv6."""
    from fcntl import ioctl

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            ioctl(asked, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return _has_address_6(name)
    return True


def _has_address_6(name: str) -> bool:
    try:
        with Path("/proc/net/if_inet6").open() as lines:
            return any(line.split()[-1] == name for line in lines)
    except OSError:
        return False
