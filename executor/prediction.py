"""How a stage's next weights are guessed: for ops that read weights predicted some steps ahead.

Predicted weights are W - lr * s * delta, where delta is the direction that the optimizer would step in, judged by its
present state:

    paper     SGD: the momentum buffer (its last gradient where it has no momentum); Adam, AdamW: m_hat / (sqrt(v_hat)
              + eps), both bias-corrected as the optimizer last computed them (PipeOptim, Eq. 5; SpecTrain for SGD)
    code      as PipeOptim's published code: SGD's delta has the last gradient once more
    adam      Adam's rule whatever the optimizer (XPipe); two moments of our own where the optimizer has none
    zero      the optimizer itself, run s times on a copy with gradients of zero: with decay and all it does
    constant  the same with the last gradients again

Before a stage's first Step there is no state, and the prediction is the weights as they are.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, assert_never, final, get_args

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from executor.errors import ExecutionError

Rule: TypeAlias = Literal["paper", "code", "adam", "zero", "constant"]

RULES: tuple[Rule, ...] = get_args(Rule)

_BETAS, _EPS = (0.9, 0.999), 1e-8
"""Of XPipe's own moments beside an optimizer without any: Adam's usual ones."""


@final
class Predictor:
    """Guesses where `optimizer` will take its parameters.

    Args:
        rule: As above.
        lr_ahead: The learning rate k steps from now over the present one; None when it does not change. Only ``zero``
            and ``constant``, which go step by step, look at it.

    Raises:
        ExecutionError: The rule does not know this optimizer.
    """

    def __init__(self, optimizer: Optimizer, rule: Rule, lr_ahead: Callable[[int], float] | None = None) -> None:
        self._optimizer = optimizer
        self._rule = rule
        self._lr_ahead = lr_ahead
        self._gradients: dict[Tensor, Tensor] = {}
        self._moments: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self._seen: set[Tensor] = set()
        self._num_steps = 0
        if rule in ("paper", "code") and not isinstance(optimizer, SGD | Adam | AdamW):
            raise ExecutionError(
                f"prediction {rule}: got optimizer {type(optimizer).__name__}, expected SGD, Adam or AdamW; "
                "try the rule adam, zero or constant"
            )
        if any(group.get("maximize") for group in optimizer.param_groups):
            raise ExecutionError("prediction: got an optimizer that maximizes, expected one that minimizes")

    def observe(self) -> None:
        """Take note of the gradients that the optimizer is about to step with; call it before each of its steps."""
        self._num_steps += 1
        for group, parameter in self._parameters():
            if parameter.grad is None:
                continue
            self._seen.add(parameter)
            if self._keeps_gradients(group):
                self._gradients[parameter] = self._gradient(group, parameter, parameter.grad)
            if self._rule == "adam" and not isinstance(self._optimizer, Adam | AdamW):
                self._update_moments(parameter, parameter.grad)

    @torch.no_grad()
    def ahead(self, steps: int) -> dict[Tensor, Tensor]:
        """Return, by parameter, the weights predicted `steps` optimizer steps from now, as new tensors."""
        if self._num_steps == 0:
            return {parameter: parameter.detach().clone() for _, parameter in self._parameters()}
        match self._rule:
            case "paper" | "code" | "adam":
                return {
                    parameter: parameter - group["lr"] * steps * delta
                    if (delta := self._delta(group, parameter)) is not None
                    else parameter.detach().clone()
                    for group, parameter in self._parameters()
                }
            case "zero" | "constant":
                return self._stepped(steps)
            case _:
                assert_never(self._rule)

    def _parameters(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield group, parameter

    def _keeps_gradients(self, group: dict[str, Any]) -> bool:
        if isinstance(self._optimizer, SGD) and self._rule in ("paper", "code"):
            return self._rule == "code" or not group["momentum"]
        return self._rule == "constant"

    @torch.no_grad()
    def _gradient(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient as SGD takes it, with the decay of the weights; as it is where the optimizer is asked."""
        if self._rule == "constant" or not group["weight_decay"]:
            return gradient.detach().clone()
        return gradient.add(parameter, alpha=group["weight_decay"])

    def _delta(self, group: dict[str, Any], parameter: Tensor) -> Tensor | None:
        """Return the direction of the next step; None for a parameter that never had a gradient."""
        state = self._optimizer.state.get(parameter, {})
        if self._rule == "adam" and not isinstance(self._optimizer, Adam | AdamW):
            moments = self._moments.get(parameter)
            return None if moments is None else _adams(*moments, self._num_steps, _BETAS, _EPS)
        if isinstance(self._optimizer, Adam | AdamW):
            if "step" not in state:
                return None
            second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
            return _adams(state["exp_avg"], second, float(state["step"]), group["betas"], group["eps"])
        gradient = self._gradients.get(parameter)
        if not group["momentum"]:
            return gradient
        buffer: Tensor | None = state.get("momentum_buffer")
        return buffer if buffer is None or gradient is None else buffer + gradient

    def _update_moments(self, parameter: Tensor, gradient: Tensor) -> None:
        first, second = self._moments.get(parameter) or (torch.zeros_like(parameter), torch.zeros_like(parameter))
        self._moments[parameter] = (
            torch.lerp(first, gradient, 1 - _BETAS[0]).detach(),
            torch.lerp(second, gradient * gradient, 1 - _BETAS[1]).detach(),
        )

    def _stepped(self, steps: int) -> dict[Tensor, Tensor]:
        """Run a copy of the optimizer on copies of its parameters."""
        copies = {parameter: parameter.detach().clone() for _, parameter in self._parameters()}
        groups = [
            {**group, "params": [copies[parameter] for parameter in group["params"]]}
            for group in self._optimizer.param_groups
        ]
        twin = object.__new__(type(self._optimizer))
        # a learning-rate scheduler puts a `step` of its own on the object, bound to the original
        twin.__dict__.update({key: value for key, value in vars(self._optimizer).items() if key != "step"})
        twin.param_groups = groups
        twin.state = defaultdict(dict)
        for parameter, state in self._optimizer.state.items():
            twin.state[copies[parameter]] = {
                key: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
                for key, value in state.items()
            }
        rates: Sequence[float] = [group["lr"] for group in groups]
        for step in range(steps):
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate if self._lr_ahead is None else rate * self._lr_ahead(step)
            for parameter, twins in copies.items():
                last = self._gradients.get(parameter)
                if parameter in self._seen:
                    twins.grad = torch.zeros_like(twins) if last is None else last.clone()
            twin.step()
        return {parameter: twins.detach() for parameter, twins in copies.items()}


def _adams(first: Tensor, second: Tensor, num_steps: float, betas: tuple[float, float], eps: float) -> Tensor:
    """Return Adam's direction after `num_steps` updates of its two moments."""
    m_hat = first / (1 - betas[0] ** num_steps)
    v_hat = second / (1 - betas[1] ** num_steps)
    delta: Tensor = m_hat / (v_hat.sqrt() + eps)
    return delta
