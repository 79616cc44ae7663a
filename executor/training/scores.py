"""Scores: the loss and the accuracy of samples, of one micro-batch or of the steps of a run.

On a GPU the scores of a micro-batch are copied to the host beside the ops, and read after they have arrived.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, final, overload

import torch
from torch import Tensor, nn

from pipesched.profiles.models import Value, mapped, tensors_of


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of samples: their mean loss, and the accuracy if there are classes.

    Attributes:
        loss: Mean.
        accuracy: Share of targets with the highest score, or None without classes.
    """

    loss: float
    accuracy: float | None


@final
class ScoreTable(Sequence[Scores]):
    """The scores of the steps of a run, stored in 16 bytes per step.

    Args:
        numbers: Loss and accuracy of the first steps, in turn; an accuracy of NaN means that the step has none.

    Attributes:
        numbers: Loss and accuracy of all steps, in turn.
    """

    def __init__(self, numbers: Iterable[float] = ()) -> None:
        self.numbers = array("d", numbers)

    def append(self, scores: Scores) -> None:
        """Add the scores of the next step."""
        self.numbers.append(scores.loss)
        self.numbers.append(math.nan if scores.accuracy is None else scores.accuracy)

    def copy(self) -> ScoreTable:
        """Return a copy of the scores; scores added to the copy leave these unchanged."""
        return ScoreTable(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers) // 2

    @overload
    def __getitem__(self, index: int) -> Scores: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Scores]: ...
    def __getitem__(self, index: int | slice) -> Scores | Sequence[Scores]:
        if isinstance(index, slice):  # not as objects, which take six times as much
            return ScoreTable(chain.from_iterable(self._pair(step) for step in range(len(self))[index]))
        loss, accuracy = self._pair(range(len(self))[index])
        return Scores(loss, None if math.isnan(accuracy) else accuracy)

    def _pair(self, step: int) -> array[float]:
        return self.numbers[2 * step : 2 * step + 2]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScoreTable) and self.numbers.tobytes() == other.numbers.tobytes()

    def __repr__(self) -> str:
        return f"ScoreTable({list(self)})"


def score(output: Any, target: Any, loss: Tensor) -> Tensor:
    """Return loss and accuracy of one output on its device, shape (2,), without waiting for them.

    The accuracy is NaN unless each target is a class number, an index into the last dimension of the output.
    """
    is_class = (
        isinstance(output, Tensor)
        and isinstance(target, Tensor)
        and not target.is_floating_point()
        and output.shape[:-1] == target.shape
    )
    accuracy = (output.argmax(-1) == target).double().mean() if is_class else loss.new_full((), math.nan).double()
    return torch.stack((loss.double(), accuracy))


def score_model(
    module: nn.Module,
    loss: Callable[[Any, Value], Tensor],
    samples: tuple[Value, Value],
    batch_size: int,
) -> Scores:
    """Return the scores of the whole model on (inputs, targets), `batch_size` samples at a time."""
    num_samples = len(tensors_of(samples[0])[0])
    scores: list[Tensor] = []
    sizes: list[int] = []
    with torch.no_grad():
        for start in range(0, num_samples, batch_size):
            rows = slice(start, min(start + batch_size, num_samples))
            x, y = (mapped(lambda tensor: tensor[rows], value) for value in samples)  # noqa: B023 -- used at once
            output = module(x)
            scores.append(score(output, y, loss(output, y)))
            sizes.append(rows.stop - rows.start)
    return mean(ScoreTable(torch.cat(scores).tolist()), sizes)


def mean(scores: Sequence[Scores], sizes: Sequence[int] | None = None) -> Scores:
    """Return the mean of `scores`, weighted by their `sizes` (default: equal weights)."""
    weights = [1] * len(scores) if sizes is None else sizes
    accuracies = [score.accuracy for score in scores if score.accuracy is not None]
    return Scores(
        sum(weight * score.loss for score, weight in zip(scores, weights, strict=True)) / sum(weights),
        sum(weight * accuracy for accuracy, weight in zip(accuracies, weights, strict=True)) / sum(weights)
        if accuracies
        else None,
    )


class HostCopy:
    """A copy of a tensor that is on its way to the host.

    A tensor on a GPU is copied to pinned memory, after the work that is queued on the current stream of the GPU.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._copy, self._event = tensor, None
        if tensor.is_cuda:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._event.record(torch.cuda.current_stream(tensor.device))

    def has_arrived(self) -> bool:
        """Return whether the numbers can be read without waiting."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def numbers(self) -> list[float]:
        """Return the elements of the tensor; wait for them if need be."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._copy.tolist()
        return numbers


@final
class ScoreReader:
    """Scores on their way to the host, in the order of their forwards.

    Args:
        tell: Called with micro-batch and scores when they have arrived; may raise to end the run.
        copy: Begins to copy a tensor to the host.
    """

    def __init__(self, tell: Callable[[int, Scores], None], copy: Callable[[Tensor], HostCopy] = HostCopy) -> None:
        self._tell = tell
        self._copy = copy
        self._under_way: deque[tuple[int, HostCopy]] = deque()

    def listen(self, microbatch: int, output: object, target: object, loss: Tensor) -> None:
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
