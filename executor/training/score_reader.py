"""The score reader reads the scores of micro-batches when they have arrived, without delaying ops."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from torch import Tensor

from pipesched.executor.training.host_copy import HostCopy, copy_to_host
from pipesched.executor.training.scores import Scores, ScoreTable, score


@final
class ScoreReader:
    """Scores on their way to the host, in the order of their forwards.

    Args:
        tell: Called with micro-batch and scores when they have arrived; may raise to end the run.
        copy: Begins to copy a tensor to the host.
    """

    def __init__(self, tell: Callable[[int, Scores], None], copy: Callable[[Tensor], HostCopy] = copy_to_host) -> None:
        self._tell = tell
        self._copy = copy
        self._under_way: deque[tuple[int, HostCopy]] = deque()

    def listen(self, microbatch: int, output: Tensor, target: Tensor, loss: Tensor) -> None:
        """Begin to copy the scores of one forward of the last stage; report all scores that have arrived."""
        self._under_way.append((microbatch, self._copy(score(output, target, loss))))
        while self._under_way and self._under_way[0][1].has_arrived():
            self._tell_next()

    def finish(self) -> None:
        """Wait for all scores that are under way, and report them."""
        while self._under_way:
            self._tell_next()

    def _tell_next(self) -> None:
        microbatch, copy = self._under_way.popleft()
        self._tell(microbatch, ScoreTable(copy.numbers())[0])
