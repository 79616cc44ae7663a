"""Worker processes that share work, end with this process, and import nothing from the working directory.

Each worker has a pipe of its own: multiprocessing's queues need semaphores, which need ``/dev/shm``.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, final

from pipesched.profiles.processes.child_process import end_with
from pipesched.profiles.processes.interrupts import hold_interrupts
from pipesched.schedules.common import OneLineError

_GARBAGE = 200_000
"""Objects between garbage collections in these processes: predictions make many, and few reference cycles."""
_SAFE_PATH = "PYTHONSAFEPATH"


class WorkerLostError(OneLineError):
    """A worker process ended before its work."""


@final
class WorkerPool:
    """Processes that apply one function to items; made by `worker_pool`."""

    def __init__(self, num_processes: int, work: Callable[[Any], Any]) -> None:
        self._work = work
        self._threads = ThreadPoolExecutor(num_processes)  # each thread starts a process and outlasts it (`end_with`)
        self._own = threading.local()
        self._workers: list[tuple[SpawnProcess, Connection]] = []
        self._is_stopped = False

    def submit(self, items: Sequence[Any]) -> Future[list[Any]]:
        """Return a future with the answers for `items`, all from one process; a process starts if all are busy."""
        return self._threads.submit(self._answers, items)

    def close(self) -> None:
        """Wait for running tasks and cancel the others."""
        self._threads.shutdown(cancel_futures=True)
        for process, connection in self._workers:
            connection.close()
            process.join()

    def stop(self) -> None:
        """End the processes at once; running tasks fail."""
        self._is_stopped = True
        for process, _ in self._workers:
            process.terminate()
        self.close()

    def _answers(self, items: Sequence[Any]) -> list[Any]:
        """Return the answers for `items` from the process of this thread.

        Raises:
            WorkerLostError: The process ended before its work.
        """
        process, connection = self._worker()
        try:
            connection.send(items)
            error, answers = connection.recv()
        except (EOFError, OSError):
            process.join()
            raise _lost(process) from None
        if error is not None:
            raise error
        return list(answers)

    def _worker(self) -> tuple[SpawnProcess, Connection]:
        """Return the process of this thread; start it if the thread has none."""
        if not hasattr(self._own, "worker"):
            connection, its = Pipe()
            process = SpawnProcess(target=_work, args=(its, os.getpid()), daemon=True)
            with its, hold_interrupts():  # the process begins without interrupts
                process.start()
            self._workers.append((process, connection))
            if self._is_stopped:
                process.terminate()
            connection.send(self._work)
            self._own.worker = process, connection
        worker: tuple[SpawnProcess, Connection] = self._own.worker
        return worker


def _lost(process: SpawnProcess) -> WorkerLostError:
    code = process.exitcode or 0
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return WorkerLostError(
        f"workers: got {how} of a worker process, expected each to finish its work; try fewer workers, or more memory"
    )


@contextmanager
def worker_pool(num_processes: int, work: Callable[[Any], Any]) -> Iterator[WorkerPool]:
    """Yield a pool of processes, which start when they are needed.

    The end of the block drops tasks that have not begun. After an exception, running tasks are stopped.

    Args:
        num_processes: Largest number of processes.
        work: Function of an item; it is sent to every process once.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"  # multiprocessing starts processes with -P only if this process has it
    pool = WorkerPool(num_processes, work)
    try:
        yield pool
        pool.close()
    except BaseException:
        pool.stop()
        raise
    finally:
        del os.environ[_SAFE_PATH]
        if before is not None:
            os.environ[_SAFE_PATH] = before


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage in this process as rarely as in the workers, inside the block."""
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _work(connection: Connection, parent: int) -> None:
    """Send the answers for each received list of items, or the exception, until the parent closes the pipe."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end silently: the parent reports the interrupt
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    gc.set_threshold(_GARBAGE)
    work: Callable[[Any], Any] | None = None
    with suppress(EOFError, OSError):
        while True:
            try:
                work = work or connection.recv()
                answer: tuple[BaseException | None, list[Any]] = None, [work(item) for item in connection.recv()]
            except (EOFError, KeyboardInterrupt):
                return
            except BaseException as error:  # noqa: BLE001 -- raised by the parent
                answer = error, []
            try:
                connection.send(answer)
            except (TypeError, AttributeError, ValueError) as error:  # the exception cannot be sent
                connection.send((RuntimeError(f"{type(error).__name__}: {answer[0]}"), []))
