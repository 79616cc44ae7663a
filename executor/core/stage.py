"""One stage of the model: its layers, and the tensors of its micro-batches between forward and backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, assert_never, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipesched.executor import ExecutionError
from pipesched.executor.core.elastic_averager import ElasticAverager
from pipesched.executor.core.gradients import GradientMean, SquaredNorm, StageSums, Term, buckets
from pipesched.executor.core.layer_rng import LayerGenerators
from pipesched.executor.core.learning_rate import LearningRate
from pipesched.executor.core.weight_versions import Weights
from pipesched.profiles.models import (
    ModuleState,
    Value,
    detached,
    in_states,
    is_value,
    kept_random_state,
    mapped,
    module_states,
    tensors_of,
)
from pipesched.schedules.ops import AnyWeightsOp, Average, Compute, Phase, Reduce, Step, Summed

if TYPE_CHECKING:
    from pipesched.profiles.measuring import Rest

States: TypeAlias = Sequence[ModuleState]
"""The states of some modules at one moment."""


@final
class ForwardStates:
    """The states of a stage's modules before forwards, for the forwards that are run again (R).

    A forward may change a module: batch normalisation counts batches, spectral normalisation takes a step of its
    iteration. R begins in the state in which F began, and leaves no trace, so a stage changes as it would without R.
    Only modules that forwards change are copied; the first forward shows which modules these are.

    Args:
        module: The stage's layers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._changing = [*module.modules()]
        self._is_known = False

    def now(self) -> States:
        """Return the present states."""
        return module_states(self._changing, has_parameters=False)

    def after(self, before: States) -> States:
        """Keep, of the states `before` a finished forward, the states of modules that forwards change."""
        if not self._is_known:
            before = [state for state in before if state.is_changed]
            self._changing, self._is_known = [state.module for state in before], True
        return before


Loss: TypeAlias = Callable[[Any, Any], Tensor]
"""A function that maps (output, target) of one micro-batch to its mean loss, a scalar."""

OnLoss: TypeAlias = Callable[[int, Any, Value, Tensor], None]
"""Called with micro-batch, output, target and loss after each forward of the last stage."""

_NOTHING: AbstractContextManager[None] = nullcontext()
_Left = TypeVar("_Left")


class Stage(ABC):
    """The interface of a stage for the interpreter."""

    def begin(self) -> None:  # noqa: B027 -- a stage without state has nothing to forget
        """Start the op list anew."""

    def watch(self, note: Callable[[], None]) -> None:  # noqa: B027 -- most stages hold nothing inside an op
        """Call `note` at the memory peaks inside an op."""

    @abstractmethod
    def compute(self, op: Compute, received: Value | None, target: Value | None) -> Value | None:
        """Run `op` and return its output.

        A gradient has a place for each tensor of its value: None if the tensor requires no gradient.

        Args:
            op: The computation.
            received: The stage's input for an F, the gradient of its output for a B, I or late R (None on the last
                stage).
            target: The target of the loss, for an F of the last stage.
        """

    def terms(self, op: Reduce) -> Iterable[Term]:  # noqa: ARG002 -- a stage without weights adds nothing
        """Return the tensors that `op` adds to its sum."""
        return ()

    def update(self, op: AnyWeightsOp) -> None:  # noqa: B027 -- a stage without weights does not learn
        """Run `op`: step the optimizer and drop the gradients, or move the weights towards the reference model."""

    def is_ready(self, op: AnyWeightsOp) -> bool:  # noqa: ARG002 -- most stages have no one to wait for
        """Return whether `op` can run without waiting for other pipelines; if False, the caller gives up its turn."""
        return True

    def settle(self) -> None:  # noqa: B027
        """Take the weights of the reference model, if there is one, with the updates of all pipelines."""

    def resident_bytes(self) -> int:
        """Return the bytes of weights, gradients and optimizer state held now."""
        return 0

    def losses(self) -> dict[int, float]:
        """Return the mean loss of every micro-batch since `begin`; empty on all stages but the last."""
        return {}


@dataclass(frozen=True, slots=True)
class _Graph:
    """The state of a forward for the backward.

    Attributes:
        x: The input, without the tensors of a tuple that require no gradient.
        starts: The edge at the output, or one for each tensor of the output; None if it requires no gradient. The
            output itself may be freed once it was sent.
    """

    x: Value
    starts: GradientEdge | list[GradientEdge | None] | None


@dataclass(frozen=True, slots=True)
class _Whole:
    """The state from I to W if no input requires a gradient; W then runs the whole backward."""

    starts: Sequence[GradientEdge]
    gradients: Sequence[Tensor]


class StageLists(NamedTuple):
    """The state of a stage that depends on its op lists.

    Attributes:
        weights: The versions of the module's parameters.
        mean: Turns the gradients of a Step into the mean over its micro-batches.
        recomputed: Micro-batches whose forward is run again by an R before the backward.
    """

    weights: Weights
    mean: GradientMean
    recomputed: Container[int] = ()


class ModuleStage(Stage):
    """A stage of real layers, which computes on tensors.

    Args:
        module: The layers; one value in, one value out.
        lists: The state that depends on the op lists.
        optimizer: Optimizer of the module's parameters, or None without parameters.
        loss: Loss function, on the last stage.
        needs_input_gradient: False on the first stage.
        draws: The random numbers of the layers; None to leave torch's generators alone.
        on_loss: Called with each loss, which is then not kept.
        sums: The sums with other stages that precede a Step.
        learning_rate: Changes the learning rate of the optimizer after a Step; None for a constant rate.

    Attributes:
        weights: The versions of the module's parameters.
        on_step: Called with the version that each Step has made.
        averager: Moves the weights towards a reference model, or None without one.
        first_reference: Initial reference by parameter (default: the weights themselves).
        first_microbatch: The number in the run of micro-batch 0 of the list.
        parameters: The parameters that learn.
    """

    def __init__(
        self,
        module: nn.Module,
        lists: StageLists,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss | None,
        needs_input_gradient: bool,
        draws: LayerGenerators | None = None,
        on_loss: OnLoss | None = None,
        sums: StageSums = StageSums(),  # noqa: B008 -- frozen
        learning_rate: LearningRate | None = None,
    ) -> None:
        self.module = module
        self.follow(lists)
        self.optimizer = optimizer
        self._loss = loss
        self._needs_input_gradient = needs_input_gradient
        self._draws = draws
        self._on_loss = on_loss
        self._sums = sums
        self.learning_rate = learning_rate
        self.on_step: Callable[[int], None] = lambda version: None  # noqa: ARG005 -- nobody need listen
        self.averager: ElasticAverager | None = None
        self.first_reference: Sequence[Tensor] | None = None
        self.first_microbatch = 0
        self.parameters = tuple(parameter for parameter in module.parameters() if parameter.requires_grad)
        self._inputs: dict[int, tuple[Value, Value | None, States]] = {}  # from F to R
        self._learns: tuple[bool, ...] | None = None  # for each tensor of the output, if an R follows F
        self._states = ForwardStates(module)
        self._saved: dict[int, _Graph] = {}  # from F, or R, to B or I
        self._halves: dict[int, Rest | _Whole] = {}  # from I to W
        self._losses: dict[int, Tensor] = {}
        self._a_loss: Tensor | None = None

    def begin(self) -> None:
        for left in (self._inputs, self._saved, self._halves, self._losses):
            left.clear()
        self.weights.begin()
        self._mean.begin()
        if self._draws is not None:
            self._draws.begin(goes_on=self.first_microbatch > 0)

    def watch(self, note: Callable[[], None]) -> None:
        self.weights.note = note

    def follow(self, lists: StageLists) -> None:
        """Continue with other lists, from the next `begin`."""
        self.weights, self._mean, self._recomputed = lists

    def take_together(self, num_lists: int) -> None:
        """Let the next Step take the mean gradient of `num_lists` runs of the list; only the last run has the Step."""
        self._mean.num_lists = num_lists

    def compute(self, op: Compute, received: Value | None, target: Value | None) -> Value | None:
        match op.phase:
            case Phase.FORWARD:
                assert received is not None, "a forward has an input"
                return self._forward(op, self._leaves(received), target)
            case Phase.RECOMPUTE:
                return self._recompute(op)
            case Phase.BACKWARD:
                return self._backward(op, received)
            case Phase.BACKWARD_INPUT:
                return self._backward_input(op, received)
            case Phase.BACKWARD_WEIGHT:
                self._backward_weight(op)
                return None

    def terms(self, op: Reduce) -> Iterable[Term]:
        match op.content:
            case Summed.GRADIENT:
                return buckets(self.parameters)
            case Summed.NORM:
                self._mean.divide(self.parameters)
                return [SquaredNorm(self.parameters, self._sums)]
            case Summed.TIED:
                self._mean.divide(self.parameters)
                return [self._sums.tied_bucket()]
            case _:
                assert_never(op.content)

    def update(self, op: AnyWeightsOp) -> None:
        match op:
            case Step():
                self._step()
            case Average():
                if self.averager is None:
                    raise ExecutionError(
                        "got an Average on a stage without a reference model, expected one; give the stage an averager"
                    )
                self.averager.average()
            case _:
                assert_never(op)

    def _step(self) -> None:
        self._mean.divide(self.parameters)
        self._mean.end_step()
        if self.averager is not None:
            self.averager.remember()
        self.weights.step(self.optimizer)
        if self.learning_rate is not None:
            self.learning_rate.end_step()
        self.on_step(self.weights.version)

    def is_ready(self, op: AnyWeightsOp) -> bool:
        if self.averager is None:
            return True
        return self.averager.may_step() if isinstance(op, Step) else self.averager.may_average()

    def settle(self) -> None:
        if self.averager is not None and not self.averager.settle():
            raise ExecutionError(
                "got a pipeline that has not finished, expected all to finish; run all lists to the end"
            )

    def resident_bytes(self) -> int:
        parameters = list(self.module.parameters())
        tensors = [*parameters, *(p.grad for p in parameters if p.grad is not None)]
        for state in self.optimizer.state.values() if self.optimizer else ():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        if self.weights.predictor is not None:
            tensors += self.weights.predictor.tensors()
        held = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
        return held + (0 if self.averager is None else self.averager.resident_bytes())

    @property
    def last_loss(self) -> Tensor | None:
        """The loss of the last forward, or None on other stages than the last."""
        return self._a_loss

    def losses(self) -> dict[int, float]:
        return {microbatch: loss.item() for microbatch, loss in self._losses.items()}

    def try_forward(self, x: Value) -> object:
        """Return the output of a forward with input `x`, without a change of the stage."""
        with kept_random_state(), in_states(self._states.now()), torch.enable_grad():
            output = self.module(self._leaves(x))
        return detached(output) if isinstance(output, Tensor | tuple) else output

    def _leaves(self, received: Value) -> Value:
        """Return the input as leaves of the stage's graph, which require gradients if the sender learns from them."""
        needs = self._needs_input_gradient
        if isinstance(received, Tensor):  # it requires one even if the sender learns nothing
            x = received.detach()
            return x.requires_grad_() if needs and x.is_floating_point() else x
        return mapped(lambda tensor: tensor.detach().requires_grad_(needs and tensor.requires_grad), received)

    def _forward(self, op: Compute, x: Value, target: Value | None) -> Value | None:
        if op.microbatch in self._recomputed:
            output, y = self._forward_once(op, x, target)
        else:
            output, y = self._run(op, x, target)
            self._saved[op.microbatch] = _graph_of(x, y)
        if self._loss is None:
            return detached(output)
        assert target is not None, "the last stage has a target"
        assert isinstance(y, Tensor), "a loss is one tensor"
        self._a_loss = loss = y.detach().clone()  # mse_loss leaves a scalar in a storage of all terms
        if self._on_loss is None:
            self._losses[op.microbatch] = loss
        else:
            shown = output.detach() if isinstance(output, Tensor) else output
            self._on_loss(self.first_microbatch + op.microbatch, shown, target, loss)
        return None

    def _forward_once(self, op: Compute, x: Value, target: Value | None) -> tuple[Any, Value]:
        """Run a forward that keeps only its input, for the R that follows."""
        before = [tensor._version for tensor in tensors_of(x)]  # noqa: SLF001 -- as autograd looks at it
        states = self._states.now()
        with torch.no_grad():
            output, y = self._run(op, x, target)
        if [tensor._version for tensor in tensors_of(x)] != before:  # noqa: SLF001
            raise ExecutionError(
                f"{op}: the stage changed its input in place, but R needs the original input; make a new tensor in the "
                "stage"
            )
        self._inputs[op.microbatch] = (x, target, self._states.after(states))
        if self._loss is None and isinstance(output, tuple):
            output = y = self._marked(x, output)
        return output, y

    def _marked(self, x: Value, output: tuple[Tensor | None, ...]) -> Value:
        """Return an output that was made without a graph; its tensors require gradients as if they had one."""
        if self._learns is None:
            tried = self.try_forward(x)
            assert isinstance(tried, tuple), "as the output"
            self._learns = tuple(tensor is not None and tensor.requires_grad for tensor in tried)
        return tuple(
            None if tensor is None else tensor.detach().requires_grad_(learns)
            for tensor, learns in zip(output, self._learns, strict=True)
        )

    def _recompute(self, op: Compute) -> Value:
        """Recompute a forward; return its output for probes, which no message carries."""
        x, target, states = _pop(self._inputs, op, "forward")
        with in_states(states):
            _, y = self._run(op, x, target)
        self._saved[op.microbatch] = _graph_of(x, y)
        return detached(y)

    def _run(self, op: Compute, x: Value, target: Value | None) -> tuple[Any, Value]:
        """Return the stage's output and the start of its backward: the output, or the loss on the last stage."""
        number = self.first_microbatch + op.microbatch
        with self.weights.forward(op), self._draws.of(number) if self._draws else _NOTHING:
            output = self.module(x)
            if self._loss is None:
                return output, _require_value(op, output)
            assert target is not None, "the last stage has a target"
            return output, _require_scalar(self._loss(output, target))

    def _backward(self, op: Compute, gradient: Value | None) -> Value | None:
        graph = _pop(self._saved, op, "forward")
        with self.weights.backward(op):
            _run_backward(*_seeds(graph, self._seeded(op, gradient)))
        return self._input_gradient(graph.x)

    def _backward_input(self, op: Compute, gradient: Value | None) -> Value | None:
        graph = _pop(self._saved, op, "forward")
        starts, gradients = _seeds(graph, self._seeded(op, gradient))
        inputs = [tensor for tensor in tensors_of(graph.x) if tensor.requires_grad]
        with self.weights.backward(op):
            if not inputs or not starts:
                self._halves[op.microbatch] = _Whole(starts, gradients)
            else:
                from pipesched.profiles.measuring import run_input_pass

                self._halves[op.microbatch] = run_input_pass(starts, gradients, inputs, self.parameters)
        return self._input_gradient(graph.x)

    def _input_gradient(self, x: Value) -> Value | None:
        """Take the gradient out of a stage's input, and return it; None on the first stage."""
        if not self._needs_input_gradient:
            return None
        if isinstance(x, Tensor):
            return _taken_gradient(x) if x.requires_grad else (None,)
        return mapped(_taken_gradient, x)

    def _backward_weight(self, op: Compute) -> None:
        half = _pop(self._halves, op, "I")
        with self.weights.backward(op):
            if isinstance(half, _Whole):
                _run_backward(half.starts, half.gradients)
                return
            from pipesched.profiles.measuring import run_weight_pass

            run_weight_pass(half, self.parameters)

    def _seeded(self, op: Compute, gradient: Value | None) -> Value | None:
        """Return the gradient at the start of the backward; on the last stage the micro-batch's share of the mean."""
        if self._loss is None:
            return gradient
        assert self._a_loss is not None, "the forward left one"
        # scaled here, where it costs no op of its own
        return torch.full_like(self._a_loss, self._mean.loss_scale(op.microbatch))


def _pop(left: dict[int, _Left], op: Compute, what: str) -> _Left:
    if op.microbatch not in left:
        raise ExecutionError(
            f"{op}: got no {what} of this micro-batch, expected one before its {op.phase.value}; check the lists"
        )
    return left.pop(op.microbatch)


def loss_fault(loss: object) -> str | None:
    """Return the reason why `loss` is not one number, or None."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return None
    got = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    return f"loss: got {got}, expected a tensor without dimensions; return the mean"


def _require_scalar(loss: Tensor) -> Tensor:
    """Refuse a loss that is not one number."""
    if (fault := loss_fault(loss)) is not None:
        raise ExecutionError(fault)
    return loss


def _require_value(op: Compute, output: object) -> Value:
    """Refuse an output that no message can carry."""
    if is_value(output):
        return output
    got = type(output).__name__
    if isinstance(output, tuple):
        got += f" of {', '.join(type(part).__name__ for part in output)}"
    raise ExecutionError(
        f"{op}: the stage returned {got}, expected a tensor, or a tuple of tensors and None; change the output of its "
        "last layer"
    )


def _graph_of(x: Value, y: Value) -> _Graph:
    if isinstance(x, tuple):
        x = tuple(tensor if tensor is not None and tensor.requires_grad else None for tensor in x)
    if isinstance(y, Tensor):
        return _Graph(x, _start_of(y))
    return _Graph(x, [None if tensor is None else _start_of(tensor) for tensor in y])


def _start_of(y: Tensor) -> GradientEdge | None:
    if not y.requires_grad:
        return None  # a first stage without parameters has nothing to learn
    return get_gradient_edge(y)


def _seeds(graph: _Graph, gradient: Value | None) -> tuple[list[GradientEdge], list[Tensor]]:
    """Return the starts of a backward that a gradient has arrived for, and these gradients."""
    starts, gradients = graph.starts, gradient
    if not isinstance(starts, list):  # an edge is a tuple
        if starts is None:
            return [], []
        assert isinstance(gradients, Tensor), "the next stage has sent one"
        return [starts], [gradients]
    assert isinstance(gradients, tuple), "a gradient has a place for each tensor"
    pairs = [
        (start, arrived)
        for start, arrived in zip(starts, gradients, strict=True)
        if start is not None and arrived is not None
    ]
    return [start for start, _ in pairs], [arrived for _, arrived in pairs]


def _run_backward(starts: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
    if starts:
        torch.autograd.backward(starts, gradients)


def _taken_gradient(x: Tensor) -> Tensor:
    """Return the gradient of a leaf, which no longer holds it; zeros if nothing depends on the leaf."""
    gradient, x.grad = x.grad, None
    return torch.zeros_like(x) if gradient is None else gradient
