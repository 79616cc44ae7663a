"""The background writer writes a checkpoint during training: one at a time, from the copy made at its step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import final


@final
class BackgroundWriter:
    """Writes in a thread.

    An error is raised when the run next checks: before the next write, after a pass of its lists, or at its end.
    Leaving the block waits for the write, except after an interrupt.
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
        """Begin to write, after the previous write has ended.

        Raises:
            ExecutionError: The previous write has failed.
        """
        self.wait()
        # an interrupt does not wait for a daemon: an incomplete checkpoint does not count
        self._thread = threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the last write, if it has failed.

        Raises:
            ExecutionError: The last write has failed.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait for the end of the current write.

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
