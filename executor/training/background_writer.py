"""The background writer writes a checkpoint while training goes on: one at a time, of what was copied at its step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import final


@final
class BackgroundWriter:
    """Writes in a thread.

    What goes wrong there is raised where the run next asks: before the next write, after a pass of its lists, or at
    its end. Whoever leaves its block waits for what is being written, but for an interrupt.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        elif not issubclass(kind, KeyboardInterrupt) and self._thread is not None:
            self._thread.join()

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write; whatever was being written before is waited for.

        Raises:
            ExecutionError: That could not be written.
        """
        self.wait()
        # nobody who interrupts the run waits for a daemon: half a checkpoint is none
        self._thread = threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Go on, unless the last write has failed.

        Raises:
            ExecutionError: It has.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            ExecutionError: The last write has failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 -- raised again where the run asks
            self._error = error
