"""Predict the weights of a stage some steps ahead, for ops that read predicted weights.

Predicted weights are W - lr s delta, where delta is the direction of the optimizer's next step, estimated from its
present state:

    momentum   SGD with momentum: the momentum buffer. SGD without: the last gradient. Adam, AdamW: the first moment
               without bias correction, which is SpecTrain's v <- u v + (1 - u) g. Other optimizers: v with u = 0.9.
               PipeOptim's Eq. 6 says only that SpecTrain takes the smoothed gradient of SGD with momentum
    adam       m_hat / (sqrt(v_hat) + eps), both bias-corrected as the optimizer last computed them; two moments of
               our own for optimizers without them (XPipe; Eq. 6 prints m and v swapped)
    optimizer  SGD as under momentum, Adam and AdamW as under adam (PipeOptim, Table I)
    code       PipeOptim's published code. SGD with momentum u: u buffer + (1 - dampening) last gradient, although the
               buffer includes that gradient already. All else: as under optimizer
    zero       the optimizer itself, run s times on a copy with gradients of zero: with its decay and all its rules
    constant   the same with the last gradients again

A gradient includes the changes that the optimizer makes first, such as adding the decay of the weights. Before a
stage's first Step there is no state, and the prediction is the present weights.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never, final

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from pipesched.executor import ExecutionError
from pipesched.profiles.measuring import adams_direction
from pipesched.schedules import PredictionRule
from pipesched.schedules.common import shown

_BETAS = (0.9, 0.999)
"""Decay rates of our own moments for optimizers without them: Adam's defaults."""


@dataclass(slots=True)
class _Moments:
    """The moments of one parameter's gradients, smoothed as Adam does it."""

    first: Tensor
    second: Tensor
    num_steps: int = 0

    def update(self, gradient: Tensor) -> None:
        self.first.lerp_(gradient, 1 - _BETAS[0])
        self.second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        self.num_steps += 1


@final
class Predictor:
    """Predicts the parameters of `optimizer` some steps ahead.

    Args:
        rule: The prediction rule.
        lr_ahead: Returns the learning rate k steps from now over the present one; None for a constant rate. Only
            ``zero`` and ``constant``, which go step by step, use it.

    Raises:
        ExecutionError: The rule does not support this optimizer, or an argument has the wrong type.
    """

    def __init__(
        self, optimizer: Optimizer, rule: PredictionRule, lr_ahead: Callable[[int], float] | None = None
    ) -> None:
        self._optimizer = optimizer
        self._rule = rule
        self._lr_ahead = lr_ahead
        self._gradients: dict[Tensor, Tensor] = {}
        self._moments: dict[Tensor, _Moments] = {}
        self._seen: set[Tensor] = set()
        if not isinstance(rule, PredictionRule):
            rules = ", ".join(f"PredictionRule.{known.name}" for known in PredictionRule)
            raise ExecutionError(f"rule: got {shown(rule)}, expected one of {rules}")
        if not isinstance(optimizer, Optimizer):
            raise ExecutionError(f"optimizer: got {shown(optimizer)}, expected one of torch.optim")
        if rule in (PredictionRule.OPTIMIZER, PredictionRule.CODE) and not isinstance(optimizer, SGD | Adam | AdamW):
            raise ExecutionError(
                f"prediction {rule.value}: got optimizer {type(optimizer).__name__}, expected SGD, Adam or AdamW; "
                "try the rule adam, zero or constant"
            )
        if any(group.get("maximize") for group in optimizer.param_groups):
            raise ExecutionError(
                f"prediction {rule.value}: got an optimizer that maximizes, expected one that minimizes; "
                "change the sign of the loss"
            )

    @torch.no_grad()
    def observe(self) -> None:
        """Record the gradients of the optimizer's next step; call it before each of its steps."""
        for group, parameter in self._parameters():
            gradient = parameter.grad
            if gradient is None:
                continue
            self._seen.add(parameter)
            if self._keeps_gradient(group):
                self._gradients[parameter] = self._taken(group, parameter, gradient)
            if self._keeps_moments():
                if parameter not in self._moments:
                    self._moments[parameter] = _Moments(torch.zeros_like(parameter), torch.zeros_like(parameter))
                self._moments[parameter].update(gradient)

    @torch.no_grad()
    def move(self, copies: Mapping[Tensor, Tensor], steps: int) -> None:
        """Move `copies` of the present weights, by parameter, to their predicted values in `steps` steps."""
        if self._rule in (PredictionRule.ZERO, PredictionRule.CONSTANT):
            self._step(copies, steps)
            return
        for group, parameter in self._parameters():
            delta = self._delta(group, parameter)
            if delta is not None:
                copies[parameter].sub_(delta, alpha=float(group["lr"]) * steps)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors held beside the optimizer's state."""
        yield from self._gradients.values()
        for moments in self._moments.values():
            yield from (moments.first, moments.second)

    def state(self) -> dict[str, Tensor]:
        """Return the state for later predictions without the optimizer's own, by ``name.number of the parameter``."""
        numbers = {parameter: number for number, (_, parameter) in enumerate(self._parameters())}
        state = {f"gradient.{numbers[parameter]}": gradient for parameter, gradient in self._gradients.items()}
        for parameter, moments in self._moments.items():
            number, num_steps = numbers[parameter], torch.tensor(moments.num_steps)
            state |= {f"first.{number}": moments.first, f"second.{number}": moments.second}
            state[f"num_steps.{number}"] = num_steps
        return state | {f"seen.{numbers[parameter]}": torch.tensor(data=True) for parameter in self._seen}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load `state` from a predictor of the same parameters.

        Raises:
            LookupError: The state is of other parameters.
        """
        for number, (_, parameter) in enumerate(self._parameters()):
            here = {
                name.partition(".")[0]: tensor.to(parameter.device)
                for name, tensor in state.items()
                if name.endswith(f".{number}")
            }
            if "seen" in here:
                self._seen.add(parameter)
            if "gradient" in here:
                self._gradients[parameter] = here["gradient"]
            if "first" in here:
                self._moments[parameter] = _Moments(here["first"], here["second"], int(here["num_steps"]))

    def twin(self, optimizer: Optimizer) -> Predictor:
        """Return a new predictor with the same rule for `optimizer`, a twin of this one's; its state is empty."""
        return Predictor(optimizer, self._rule, self._lr_ahead)

    def _parameters(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield group, parameter

    def _keeps_gradient(self, group: dict[str, Any]) -> bool:
        match self._rule:
            case PredictionRule.MOMENTUM | PredictionRule.OPTIMIZER:
                return isinstance(self._optimizer, SGD) and not group["momentum"]
            case PredictionRule.CODE:
                return isinstance(self._optimizer, SGD)
            case PredictionRule.CONSTANT:
                return True
            case PredictionRule.ADAM | PredictionRule.ZERO:
                return False
            case _:
                assert_never(self._rule)

    def _keeps_moments(self) -> bool:
        has_first, has_both = isinstance(self._optimizer, SGD | Adam | AdamW), isinstance(self._optimizer, Adam | AdamW)
        return (self._rule is PredictionRule.MOMENTUM and not has_first) or (
            self._rule is PredictionRule.ADAM and not has_both
        )

    def _taken(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient as SGD uses it, or unchanged if the optimizer itself is run."""
        if self._rule is PredictionRule.CONSTANT or not group["weight_decay"]:
            return gradient.clone()
        return gradient.add(parameter, alpha=group["weight_decay"])

    def _delta(self, group: dict[str, Any], parameter: Tensor) -> Tensor | None:
        """Return the direction of the next step, or None for a parameter that never had a gradient."""
        if self._keeps_moments():
            own = self._moments.get(parameter)
            if own is None:
                return None
            return (
                own.first
                if self._rule is PredictionRule.MOMENTUM
                else adams_direction(own.first, own.second, own.num_steps)
            )
        state = self._optimizer.state.get(parameter, {})
        if isinstance(self._optimizer, SGD):
            return self._delta_of_sgd(group, self._gradients.get(parameter), state.get("momentum_buffer"))
        if "exp_avg" not in state:
            return None
        first: Tensor = state["exp_avg"]
        if self._rule is PredictionRule.MOMENTUM:
            return first
        second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
        return adams_direction(first, second, float(state["step"]), group["betas"], group["eps"])

    def _delta_of_sgd(self, group: dict[str, Any], gradient: Tensor | None, buffer: Tensor | None) -> Tensor | None:
        if not group["momentum"]:
            return gradient
        if self._rule is PredictionRule.CODE and buffer is not None and gradient is not None:
            return torch.add(group["momentum"] * buffer, gradient, alpha=1 - group["dampening"])
        return buffer

    def _step(self, copies: Mapping[Tensor, Tensor], steps: int) -> None:
        """Run a twin of the optimizer on `copies`."""
        twin = twin_of(self._optimizer, copies)
        for parameter, state in self._optimizer.state.items():
            twin.state[copies[parameter]] = {
                key: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
                for key, value in state.items()
            }
        rates = [group["lr"] for group in twin.param_groups]
        for step in range(steps):
            for group, rate in zip(twin.param_groups, rates, strict=True):
                group["lr"] = rate if self._lr_ahead is None else rate * self._lr_ahead(step)
            for parameter in self._seen:
                moved, last = copies[parameter], self._gradients.get(parameter)
                moved.grad = torch.zeros_like(moved) if last is None else last.clone()
            twin.step()


def twin_of(optimizer: Optimizer, copies: Mapping[Tensor, Tensor]) -> Optimizer:
    """Return an optimizer of the same kind and settings for `copies` of its parameters, without steps."""
    twin = object.__new__(type(optimizer))
    # a learning-rate scheduler puts a `step` of its own on the object, bound to the original
    twin.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    twin.param_groups = [
        {**group, "params": [copies[parameter] for parameter in group["params"]]} for group in optimizer.param_groups
    ]
    twin.state = defaultdict(dict)
    return twin
