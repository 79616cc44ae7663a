"""One stage of the model: its layers, and the tensors of its micro-batches between forward and backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar, assert_never, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipesched.executor import ExecutionError
from pipesched.executor.core.elastic_averager import ElasticAverager
from pipesched.executor.core.gradients import Clipping, GradientMean, SquaredNorm, StageTies, Term, buckets
from pipesched.executor.core.layer_rng import LayerGenerators
from pipesched.executor.core.weight_versions import Weights
from pipesched.profiles.models import ModuleState, in_states, module_states
from pipesched.schedules.ops import Average, Compute, Phase, Reduce, Step, Summed

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
        """Return the states, before a finished forward, of the modules that forwards change."""
        if not self._is_known:
            before = [state for state in before if state.is_changed]
            self._changing, self._is_known = [state.module for state in before], True
        return before


if TYPE_CHECKING:
    from pipesched.profiles.measuring import Rest

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function that maps (output, target) of one micro-batch to its mean loss, a scalar."""

OnLoss: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], None]
"""Called with micro-batch, output, target and loss after each forward of the last stage."""

_BACKWARD_TAKES_EDGES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
_NOTHING: AbstractContextManager[None] = nullcontext()
_Left = TypeVar("_Left")


class Stage(ABC):
    """The interface of a stage for the interpreter."""

    @abstractmethod
    def begin(self) -> None:
        """Start the op list anew."""

    def watch(self, note: Callable[[], None]) -> None:  # noqa: B027 -- most stages hold nothing inside an op
        """Call `note` at the memory peaks inside an op."""

    @abstractmethod
    def compute(self, op: Compute, received: Tensor | None, target: Tensor | None) -> Tensor | None:
        """Run `op` and return its output tensor.

        Args:
            op: The computation.
            received: The stage's input for an F, the gradient of its output for a B, I or late R (None on the last
                stage).
            target: The target of the loss, for an F of the last stage.
        """

    @abstractmethod
    def terms(self, op: Reduce) -> Iterable[Term]:
        """Return the tensors that `op` adds to its sum."""

    @abstractmethod
    def step(self) -> None:
        """Step the optimizer and drop the gradients."""

    @abstractmethod
    def average(self) -> None:
        """Move the weights towards the reference model."""

    def is_ready(self, op: Step | Average) -> bool:  # noqa: ARG002 -- most stages have no one to wait for
        """Return whether `op` can run without waiting for other pipelines; if False, the caller gives up its turn."""
        return True

    @abstractmethod
    def settle(self) -> None:
        """Take the weights of the reference model, if there is one, with the updates of all pipelines."""

    def resident_bytes(self) -> int:
        """Return the bytes of weights, gradients and optimizer state held now."""
        return 0

    def losses(self) -> dict[int, float]:
        """Return the mean loss of every micro-batch since `begin`; empty on all stages but the last."""
        return {}


@dataclass(frozen=True, slots=True)
class _Graph:
    """The state of a forward for the backward: autograd starts from the output; None if the stage learns nothing."""

    x: Tensor
    output: Tensor | GradientEdge | None


@dataclass(frozen=True, slots=True)
class _Whole:
    """The state from the input-gradient pass (I) to W on the first stage: the whole backward."""

    output: Tensor | GradientEdge | None
    gradient: Tensor | None


class ModuleStage(Stage):
    """A stage of real layers, which computes on tensors.

    Args:
        module: The layers; one tensor in, one tensor out.
        weights: The versions of the module's parameters.
        optimizer: Optimizer of the module's parameters, or None without parameters.
        loss: Loss function, on the last stage.
        mean: Turns the gradients of a Step into the mean over its micro-batches.
        needs_input_gradient: False on the first stage.
        draws: The random numbers of the layers; None to leave torch's generators alone.
        recomputed: Micro-batches whose forward is run again by an R before the backward.
        on_loss: Called with each loss, which is then not kept.
        on_step: Called with the version that each Step has made.
        clipping: Clipping of the gradients, where a sum of norms precedes the Step.
        ties: The parameters that stages share, where a sum of their gradients precedes the Step.

    Attributes:
        averager: Moves the weights towards a reference model, or None without one.
        first_reference: Initial reference by parameter (default: the weights themselves).
        first_microbatch: The number in the run of micro-batch 0 of the list.
        parameters: The parameters that learn.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Weights,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss | None,
        mean: GradientMean,
        needs_input_gradient: bool,
        draws: LayerGenerators | None = None,
        recomputed: Container[int] = (),
        on_loss: OnLoss | None = None,
        on_step: Callable[[int], None] | None = None,
        clipping: Clipping = Clipping(),  # noqa: B008 -- frozen
        ties: StageTies = StageTies(),  # noqa: B008 -- frozen
    ) -> None:
        self.module = module
        self.weights = weights
        self.optimizer = optimizer
        self._loss = loss
        self._mean = mean
        self._needs_input_gradient = needs_input_gradient
        self._draws = draws
        self._recomputed = recomputed
        self._on_loss = on_loss
        self._on_step = on_step
        self._clipping = clipping
        self._ties = ties
        self.averager: ElasticAverager | None = None
        self.first_reference: Sequence[Tensor] | None = None
        self.first_microbatch = 0
        self.parameters = tuple(parameter for parameter in module.parameters() if parameter.requires_grad)
        self._inputs: dict[int, tuple[Tensor, Tensor | None, States]] = {}  # from F to R
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

    def follow(self, weights: Weights, mean: GradientMean, recomputed: Container[int]) -> None:
        """Continue with other lists, from the next `begin`."""
        self.weights = weights
        self._mean = mean
        self._recomputed = recomputed

    def compute(self, op: Compute, received: Tensor | None, target: Tensor | None) -> Tensor | None:
        match op.phase:
            case Phase.FORWARD:
                assert received is not None, "a forward has an input"
                return self._forward(op, received.detach(), target)
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
                return [SquaredNorm(self.parameters, self._clipping, self._ties.copies)]
            case Summed.TIED:
                self._mean.divide(self.parameters)
                return [self._ties.bucket(self._clipping.num_replicas)]
            case _:
                assert_never(op.content)

    def step(self) -> None:
        self._mean.divide(self.parameters)
        self._mean.end_step()
        if self.averager is not None:
            self.averager.remember()
        self.weights.step(self.optimizer)
        if self._on_step is not None:
            self._on_step(self.weights.version)

    def is_ready(self, op: Step | Average) -> bool:
        if self.averager is None:
            return True
        return self.averager.may_step() if isinstance(op, Step) else self.averager.may_average()

    def average(self) -> None:
        if self.averager is None:
            raise ExecutionError("this stage has no reference model to be averaged with; give it an averager")
        self.averager.average()

    def settle(self) -> None:
        if self.averager is not None and not self.averager.settle():
            raise ExecutionError("not all pipelines are over yet; run their lists to the end")

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

    def _forward(self, op: Compute, x: Tensor, target: Tensor | None) -> Tensor | None:
        if op.microbatch in self._recomputed:
            output, y = self._forward_once(op, x, target)
        else:
            output, y = self._run(op, x, target)
            self._saved[op.microbatch] = _Graph(x, _graph_of(y))
        if self._loss is None:
            return output.detach()
        assert target is not None, "the last stage has a target"
        self._a_loss = loss = y.detach().clone()  # mse_loss leaves a scalar in a storage of all terms
        if self._on_loss is None:
            self._losses[op.microbatch] = loss
        else:
            self._on_loss(self.first_microbatch + op.microbatch, output.detach(), target, loss)
        return None

    def _forward_once(self, op: Compute, x: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run a forward that keeps only its input, for the R that follows."""
        before = x._version  # noqa: SLF001 -- as autograd looks at it
        states = self._states.now()
        with torch.no_grad():
            made = self._run(op, x, target)
        if x._version != before:  # noqa: SLF001
            raise ExecutionError(f"{op}: the stage changed its input in place, which R needs; let it make a new tensor")
        self._inputs[op.microbatch] = (x, target, self._states.after(states))
        return made

    def _recompute(self, op: Compute) -> Tensor:
        """Recompute a forward; return its output for probes, which no message carries."""
        x, target, states = _pop(self._inputs, op, "forward")
        with in_states(states):
            _, y = self._run(op, x, target)
        self._saved[op.microbatch] = _Graph(x, _graph_of(y))
        return y.detach()

    def _run(self, op: Compute, x: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the stage's output and the start of its backward: the output, or the loss on the last stage."""
        if self._needs_input_gradient:
            x.requires_grad_()
        number = self.first_microbatch + op.microbatch
        with self.weights.forward(op), self._draws.of(number) if self._draws else _NOTHING:
            output = self.module(x)
            if not isinstance(output, Tensor):
                raise ExecutionError(
                    f"{op}: the stage returned {type(output).__name__}, expected one tensor; a skip connection must "
                    "begin and end within one stage"
                )
            if self._loss is None:
                return output, output
            assert target is not None, "the last stage has a target"
            return output, self._loss(output, target)

    def _backward(self, op: Compute, gradient: Tensor | None) -> Tensor | None:
        graph = _pop(self._saved, op, "forward")
        with self.weights.backward(op):
            _run_backward(graph.output, self._seeded(op, gradient))
        return graph.x.grad

    def _backward_input(self, op: Compute, gradient: Tensor | None) -> Tensor | None:
        graph = _pop(self._saved, op, "forward")
        gradient = self._seeded(op, gradient)
        with self.weights.backward(op):
            if not self._needs_input_gradient:
                self._halves[op.microbatch] = _Whole(graph.output, gradient)
                return None
            from pipesched.profiles.measuring import run_input_pass

            assert graph.output is not None, "it depends on x, which requires a gradient"
            assert gradient is not None, "the next stage has sent one"
            self._halves[op.microbatch] = run_input_pass([graph.output], [gradient], [graph.x], self.parameters)
        # the rest of the graph holds x, and must not hold its gradient
        result, graph.x.grad = graph.x.grad, None
        return result

    def _backward_weight(self, op: Compute) -> None:
        half = _pop(self._halves, op, "I")
        with self.weights.backward(op):
            if isinstance(half, _Whole):
                _run_backward(half.output, half.gradient)
                return
            from pipesched.profiles.measuring import run_weight_pass

            run_weight_pass(half, self.parameters)

    def _seeded(self, op: Compute, gradient: Tensor | None) -> Tensor | None:
        """Return the gradient at the start of the backward; on the last stage the micro-batch's share of the mean."""
        if self._loss is None:
            return gradient
        assert self._a_loss is not None, "the forward left one"
        # scaled here, where it costs no op of its own
        return torch.full_like(self._a_loss, self._mean.loss_scale(op.microbatch))


def _pop(left: dict[int, _Left], op: Compute, what: str) -> _Left:
    if op.microbatch not in left:
        raise ExecutionError(f"{op}: got no {what} of this micro-batch, expected one before its {op.phase.value}")
    return left.pop(op.microbatch)


def _run_backward(output: Tensor | GradientEdge | None, gradient: Tensor | None) -> None:
    if output is not None:
        torch.autograd.backward(output, gradient)


def _graph_of(y: Tensor) -> Tensor | GradientEdge | None:
    """Return the start of a backward: the graph without the output, which may be freed once it was sent."""
    if not y.requires_grad:
        return None  # a first stage without parameters has nothing to learn
    return get_gradient_edge(y) if _BACKWARD_TAKES_EDGES else y
