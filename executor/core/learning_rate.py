"""The learning rate of a stage's optimizer, by a schedule of ``torch.optim.lr_scheduler``.

A learning rate is constant within a step of the run. A stage whose replicas take turns (1F1B-RR) may step several times
in it, so its schedule advances once in so many Steps of the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    PolynomialLR,
    SequentialLR,
)

from pipesched.executor import LearningSettings
from pipesched.schedules.common import tuple_of


def make_scheduler(optimizer: Optimizer, settings: LearningSettings, num_steps: int) -> LRScheduler | None:
    """Return the scheduler of an optimizer's learning rate, or None for a constant rate.

    Warm-up begins at 1 / (n + 1) of the rate if it has n steps.

    Args:
        optimizer: The optimizer, without steps.
        settings: The schedule.
        num_steps: Steps of the run; the length of a schedule without `lr_steps`.
    """
    warmup = settings.lr_warmup
    main = _main_scheduler(optimizer, settings, (settings.lr_steps or num_steps) - warmup)
    if not warmup:
        return main
    rising = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return rising if main is None else SequentialLR(optimizer, [rising, main], [warmup])


def _main_scheduler(optimizer: Optimizer, settings: LearningSettings, num_steps: int) -> LRScheduler | None:
    """Return the scheduler after the warm-up, which ends after `num_steps` steps."""
    end = settings.lr_end or 0.0
    match settings.lr_schedule:
        case "constant":
            return None
        case "step":
            milestones = [step - settings.lr_warmup for step in tuple_of(settings.lr_milestones or ())]
            factor = 0.1 if settings.lr_factor is None else settings.lr_factor
            return MultiStepLR(optimizer, milestones, factor)
        case "cosine":
            return CosineAnnealingLR(optimizer, num_steps, eta_min=end * optimizer.param_groups[0]["lr"])
        case "linear":
            return LinearLR(optimizer, start_factor=1.0, end_factor=end, total_iters=num_steps)
        case "polynomial":
            power = 1.0 if settings.lr_power is None else settings.lr_power
            return PolynomialLR(optimizer, num_steps, power)


@final
class LearningRate:
    """The learning rate of the optimizer of a stage, which its scheduler changes.

    Args:
        optimizer: The optimizer, without steps.
        settings: The schedule, which is not constant.
        num_steps: Steps of the run.
        num_parts: Steps of the stage in a step of the run.
    """

    def __init__(self, optimizer: Optimizer, settings: LearningSettings, num_steps: int, num_parts: int = 1) -> None:
        # a scheduler beside that of the optimizer finds the rates of later steps
        beside = SGD([nn.Parameter(torch.zeros(1))], optimizer.param_groups[0]["lr"])
        scheduler, ahead = make_scheduler(optimizer, settings, num_steps), make_scheduler(beside, settings, num_steps)
        assert scheduler is not None, "the rate is not constant"
        assert ahead is not None, "the rate is not constant"
        beside.step()  # or its scheduler warns
        self._optimizer, self._scheduler = optimizer, scheduler
        self._beside, self._ahead = beside, ahead
        self._num_parts = num_parts
        self._taken = 0
        self._rates: list[float] = []  # of this step of the run and later ones

    def end_step(self) -> None:
        """Set the rate of the next Step of the stage, after each Step."""
        self._taken += 1
        if self._taken == self._num_parts:
            self._taken = 0
            self._scheduler.step()
            self._rates.clear()

    def ahead(self, num_steps: int) -> float:
        """Return the ratio of the rate after `num_steps` more Steps of the stage to the present rate."""
        if not self._rates:
            _load(self._ahead, _numbers(self._scheduler))
            self._rates.append(_set_rate(self._beside, self._ahead))
        index = (self._taken + num_steps) // self._num_parts
        while len(self._rates) <= index:
            self._ahead.step()
            self._rates.append(float(self._ahead.get_last_lr()[0]))
        return self._rates[index] / self._rates[0] if self._rates[0] else 1.0

    def state(self) -> dict[str, Tensor]:
        """Return the state between two steps of the run, by name."""
        return {name: torch.tensor(value, dtype=_dtype(value)) for name, value in _numbers(self._scheduler).items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the rate of `state`, which has the names of `state()`."""
        _load(self._scheduler, {name: tensor.item() for name, tensor in state.items()})
        _set_rate(self._optimizer, self._scheduler)
        self._rates.clear()


def _dtype(value: float) -> torch.dtype:
    return torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float64


def _set_rate(optimizer: Optimizer, scheduler: LRScheduler) -> float:
    """Give an optimizer the rate of its scheduler, and return it."""
    (rate,) = map(float, scheduler.get_last_lr())
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def _numbers(scheduler: LRScheduler) -> dict[str, float]:
    """Return the numbers in the state of a scheduler, by their places: ``_schedulers.0.last_epoch``."""
    numbers: dict[str, float] = {}
    _replaced(scheduler.state_dict(), lambda name, number: numbers.setdefault(name, number))
    return numbers


def _load(scheduler: LRScheduler, numbers: Mapping[str, float]) -> None:
    """Load the numbers of `_numbers` of an equal scheduler."""
    scheduler.load_state_dict(_replaced(scheduler.state_dict(), lambda name, _: numbers[name]))


def _replaced(state: Any, replace: Callable[[str, float], float], place: str = "") -> Any:
    """Return the state of a scheduler with each number replaced.

    Args:
        state: A number, or a list or dictionary of states.
        replace: Returns the new number for a place and the old number.
        place: The place of `state`.
    """
    if not isinstance(state, dict | list):
        return replace(place.removeprefix("."), state)
    replaced = copy(state)
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        replaced[key] = _replaced(value, replace, f"{place}.{key}")
    return replaced
