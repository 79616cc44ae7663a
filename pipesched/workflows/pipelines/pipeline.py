"""A pipeline in one's own training loop, in one process or with a process per rank."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipesched.executor import ExecutionError, RunSettings
from pipesched.executor.core import Batch
from pipesched.executor.runs import LocalLoop, LoopSpec, OwnLoop, RankLoop, lists_of_batch
from pipesched.profiles import DTYPES, DeviceKind
from pipesched.profiles.models import Model, OptimizerFactory, Value, build_layers
from pipesched.profiles.partitioning import parse_partition
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import with_step_barrier
from pipesched.workflows import (
    ArgumentError,
    is_rank,
    require_callable,
    require_flag,
    require_kind,
    require_optional,
    require_rate,
    require_settings,
)
from pipesched.workflows.arguments import require_possible
from pipesched.workflows.pipelines.batch_cutting import BatchForm, joined


@final
class Pipeline:
    """A module that trains as a pipeline in one's own loop.

        with pipesched.Pipeline(
            module, schedule="1f1b", num_ranks=2, microbatches=8, loss=nn.functional.mse_loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), example=(inputs[:2],),
        ) as pipe:
            for inputs, targets in data:
                loss = pipe.step(inputs, targets)

    Alone, all ranks run in this process, in turns on a CPU, or each on a stream of a GPU. Under ``torchrun``, and in a
    script that has initialised ``torch.distributed``, each process runs one rank; the number of processes is the number
    of ranks. All processes then make the same calls in the same order, with the same batches. Each reads only the parts
    of a batch that its stages need.

    The pipeline has its own copy of the weights: `state_dict` returns them under the module's names. Each stage has an
    optimizer of its own. `optimizers` lists those of this process, so that learning rates follow the schedulers of
    PyTorch: ``[LambdaLR(optimizer, rate) for optimizer in pipe.optimizers]``. Random numbers of layers, as of dropout,
    depend on `seed` alone; the generators of the script stay as they are.

    Args:
        module: A `Model`.
        schedule: A name of the catalogue, or a `Schedule` with the lists of one batch. Each stage steps once, at the
            end of its list: a schedule without a flush, or that averages pipelines, is refused.
        num_ranks: Ranks, with a schedule by name.
        microbatches: Equal micro-batches of a batch, with a schedule by name.
        loss: A function of (outputs, targets) of a micro-batch that returns its mean loss; None: the model's
            own.
        optimizer: Makes the optimizer of a stage from the list of its parameters.
        example: Inputs of one micro-batch: a tensor, a tuple of positional arguments, or a dictionary of keyword
            arguments. Each tensor has its samples in dimension 0.
        partition: ``uniform`` (None), ``balanced`` by the number of parameters, or layers per stage: ``3,3,4``.
        dtype: Type of weights and floating-point data (default: as they are).
        device: ``cpu`` or ``cuda``.
        clip_grad_norm: Largest norm of the gradients of the whole model; None for no clipping.
        seed: Seed of the layers' random numbers, and of the weights of a `Model`.
        timeout_s: Longest wait of a process for another one [s].

    Raises:
        ArgumentError: An argument is invalid.
        ExecutionError: The schedule has no flush, the processes do not agree, or the module does not run.
        ProfileError: The module cannot be cut.
        ScheduleError: There is no such schedule.
    """

    def __init__(
        self,
        module: Model,
        *,
        schedule: str | Schedule,
        num_ranks: int | None = None,
        microbatches: int | None = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
        optimizer: OptimizerFactory,
        example: Any,
        partition: str | None = None,
        dtype: torch.dtype | None = None,
        device: DeviceKind = "cpu",
        clip_grad_norm: float | None = None,
        seed: int = 0,
        timeout_s: float = 300.0,
    ) -> None:
        require_callable("optimizer", optimizer)
        if loss is not None:
            require_callable("loss", loss)
        self._schedule = _read_schedule(schedule, num_ranks, microbatches, clip_grad_norm)
        self._form = BatchForm.of(example, self._schedule.num_microbatches)
        settings = _settings(dtype, device, clip_grad_norm, seed, timeout_s)
        self._model = _read_model(module, loss)
        self._targets: Value | None = None
        self._state = "open"
        spec = LoopSpec(
            schedule=lists_of_batch(self._schedule),
            model=self._model,
            bounds=_bounds(self._model, partition, self._schedule.num_stages),
            settings=settings,
            optimizer=_checked(optimizer),
            keeps_dtype=dtype is None,
            sample=self._form.sample,
        )
        self._spec = spec
        self._loop: OwnLoop = RankLoop(spec) if _is_one_of_several() else LocalLoop(spec)
        self._finalizer = weakref.finalize(self, _leave, self._loop)

    @property
    def schedule(self) -> Schedule:
        """The lists of a batch."""
        return self._schedule

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers of the stages in this process, for schedulers of learning rates and for checkpoints."""
        return self._loop.optimizers

    def step(self, inputs: Any, targets: Any = None, *, update: bool = True, record: bool = False) -> Tensor:
        """Train on one batch; return its mean loss, a tensor without dimensions, equal in every process.

        Args:
            inputs: Inputs of the batch, as the example, with the samples of all micro-batches.
            targets: Targets with as many samples; None where the inputs contain them.
            update: False to only add gradients. The next update takes the mean gradient of all batches since the last.
            record: Whether `timeline` can return this step; recording its times and memory takes a little time.

        Raises:
            ArgumentError: The batch cannot be divided, or has other shapes than the example.
            ExecutionError: An op failed: with rank, op and micro-batch. The pipeline is then closed.
        """
        require_flag("update", update)
        require_flag("record", record)
        (batch,) = self._cut(inputs, targets, is_whole=True)
        self._targets = batch.targets[0]
        with self._in_turn("step" if update else "step without update"):
            return self._loop.step(batch, updates=update, records=record)

    def evaluate(self, inputs: Any, targets: Any = None) -> Value:
        """Run the module forward, in evaluation mode and without gradients; weights and generators do not change.

        Args:
            inputs: Inputs, as the example, with any number of micro-batches.
            targets: Targets, to return the mean loss; None to return the outputs.

        Returns:
            The mean loss with targets, the outputs of all samples without; on the CPU, equal in every process.

        Raises:
            ArgumentError: The samples cannot be divided, or have other shapes than the example.
            ExecutionError: An op failed: with rank, op and micro-batch. The pipeline is then closed.
        """
        outputs: list[Value] = []
        with self._in_turn("evaluate"):
            for batch in self._cut(inputs, targets, is_whole=False):
                own = self._loop.evaluate(batch, is_scored=targets is not None)
                outputs += self._everyones(own, len(batch.inputs))
        return joined(outputs) if targets is None else torch.stack([*map(_one_tensor, outputs)]).mean()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights and buffers of the whole module, on the CPU, by its own names; in every process.

        The names of a `Model` are those of ``torch.nn.Sequential`` of its layers.

        Raises:
            ExecutionError: A process is missing.
        """
        with self._in_turn("state_dict"):
            return self._loop.state()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load weights and buffers, as `state_dict` returns them; every process has all of them, and keeps its part.

        Raises:
            ArgumentError: A name is missing or unknown, or a tensor has another shape; nothing is loaded.
            ExecutionError: A process is missing.
        """
        with self._in_turn("load_state_dict"):
            fault = _state_fault(state, self._loop.own_state())
            own = json.dumps([fault, [*self._loop.own_state()]])
            names = [json.loads(text) for text in self._loop.gather_texts(own)]
            faults = [text for text, _ in names if text]
            unknown = set(state) - {name for _, known in names for name in known}
            if unknown:
                faults.append(f"state: got {min(unknown)!r}, expected no such name; load the state of this module")
            if not faults:
                self._loop.load(state)
        if faults:
            raise ArgumentError(faults[0])

    def timeline(self) -> Timeline:
        """Return the measured Timeline of the last step with ``record=True``, equal in every process.

        In one process without GPUs the ranks take turns: its times do not overlap.

        Raises:
            ArgumentError: No step was recorded.
            ExecutionError: A process is missing.
        """
        with self._in_turn("timeline"):
            timeline = self._loop.timeline()
        if timeline is None:
            raise ArgumentError("timeline: got no recorded step, expected one; try step(..., record=True)")
        return timeline

    def close(self) -> None:
        """Leave the other processes, and free what the pipeline has set up; a second call does nothing.

        Raises:
            ExecutionError: A process is missing.
        """
        if self._finalizer.detach() is not None and self._state == "open":
            self._state = "closed"
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._state == "open":
            self._fail(error)

    def __repr__(self) -> str:
        return f"Pipeline({self._model.name!r}, schedule={self._schedule.name!r}, num_ranks={self._schedule.num_ranks})"

    def _cut(self, inputs: Any, targets: Any, *, is_whole: bool) -> list[Batch]:
        self._require_open()
        return self._form.cut(inputs, targets, is_whole=is_whole)

    def _everyones(self, own: Mapping[int, Value], count: int) -> list[Value]:
        """Return the outputs of all micro-batches, which are on the ranks with the last stage."""
        named = {
            f"{number}.{place}": tensor
            for number, value in own.items()
            for place, tensor in enumerate(value if isinstance(value, tuple) else [value])
            if tensor is not None
        }
        forms = {number: len(value) if isinstance(value, tuple) else 0 for number, value in own.items()}
        lengths: dict[int, int] = {}
        for text in self._loop.gather_texts(json.dumps(forms)):
            lengths |= {int(number): length for number, length in json.loads(text).items()}
        tensors = self._loop.union(named)
        return [
            tuple(tensors.get(f"{number}.{place}") for place in range(lengths[number]))
            if lengths[number]
            else tensors[f"{number}.0"]
            for number in range(count)
        ]

    @contextmanager
    def _in_turn(self, call: str) -> Iterator[None]:
        """Run a part of the loop; an error inside closes the pipeline, so that the other processes end too."""
        self._require_open()
        try:
            self._loop.begin_turn(call)
            yield
        except BaseException as error:
            self._fail(error)
            if (cause := self._loop.cause_of(error)) is not None:
                raise cause from error
            raise

    def _require_open(self) -> None:
        if self._state != "open":
            raise ExecutionError(f"pipeline: got a call after it {self._state}, expected none; make a new Pipeline")

    def _fail(self, error: BaseException) -> None:
        self._state = "has failed"
        self._finalizer.detach()
        self._loop.close(error)


def _leave(loop: OwnLoop) -> None:
    """Leave without waiting for other processes, when the script ends or forgets the pipeline."""
    loop.close(ExecutionError("pipeline: got no call of close, expected one"))


def _read_schedule(schedule: object, num_ranks: object, microbatches: object, clip_grad_norm: float | None) -> Schedule:
    require_kind("schedule", schedule, str | Schedule, "a name of the catalogue, as 1f1b, or a Schedule")
    if isinstance(schedule, Schedule):
        for name, got, own in (
            ("num_ranks", num_ranks, schedule.num_ranks),
            ("microbatches", microbatches, schedule.num_microbatches),
        ):
            if got is not None and got != own:
                raise ArgumentError(f"{name}: got {got!r}, expected {own}, as the schedule has; leave it out")
        lists = schedule.held()
    else:
        assert isinstance(schedule, str), "its kind"
        for name, got in (("num_ranks", num_ranks), ("microbatches", microbatches)):
            if got is None:
                raise ArgumentError(f"{name}: got none with schedule {schedule}, expected it; try {name}=2")
        ranks, count = require_optional("num_ranks", num_ranks, 1), require_optional("microbatches", microbatches, 1)
        assert ranks is not None, "as it is given"
        assert count is not None, "as it is given"
        lists = build(schedule, ranks, count)
    if clip_grad_norm is None:
        return lists
    require_rate("clip_grad_norm", clip_grad_norm)
    return with_step_barrier(lists)


def _settings(
    dtype: object, device: DeviceKind, clip_grad_norm: float | None, seed: int, timeout_s: float
) -> RunSettings:
    names = {getattr(torch, name): name for name in DTYPES}
    if dtype is not None and dtype not in names:
        raise ArgumentError(f"dtype: got {dtype!r}, expected one of {', '.join(map(str, names))}")
    require_rate("timeout_s", timeout_s)
    settings = RunSettings(
        dtype=names.get(dtype, "float32"),
        device=device,
        clip_grad_norm=clip_grad_norm,
        seed=seed,
        timeout_s=timeout_s,
        threads=torch.get_num_threads(),
        is_pinned=False,  # the script's own threads and processes share the cores
    )
    require_settings(settings)
    require_possible(settings)
    return settings


def _read_model(module: object, loss: Callable[[Any, Any], Tensor] | None) -> Model:
    if isinstance(module, Model):
        own = module.loss if loss is None else loss
        return replace(module, loss=_scalar(own))
    raise ArgumentError(f"module: got {type(module).__name__}, expected a Model")


def _scalar(loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Return a loss function that refuses a result with dimensions."""

    def checked(outputs: Any, targets: Any) -> Tensor:
        value = loss(outputs, targets)
        if not isinstance(value, Tensor) or value.dim():
            got = f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ArgumentError(f"loss: got {got}, expected a tensor without dimensions; return its mean")
        return value

    return checked


def _checked(optimizer: OptimizerFactory) -> OptimizerFactory:
    """Return a function that refuses anything but an optimizer."""

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made = optimizer(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise ArgumentError(f"optimizer: got a function that returns {type(made).__name__}, expected an optimizer")
        return made

    return make


def _bounds(model: Model, partition: str | None, num_stages: int) -> tuple[tuple[int, int], ...]:
    sizes = [1.0] * len(model.layers)
    if partition == "balanced":
        built = (build_layers(model, index, index + 1, seed=0) for index in range(len(sizes)))
        sizes = [float(sum(parameter.numel() for parameter in layer.parameters())) for layer in built]
    return parse_partition(partition or "uniform", sizes, num_stages)


def _is_one_of_several() -> bool:
    """Return whether this process runs one rank, and other processes the others."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return is_rank() and os.environ["WORLD_SIZE"] != "1"


def _one_tensor(value: Value) -> Tensor:
    assert isinstance(value, Tensor), "a loss"
    return value


def _state_fault(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str | None:
    for name, tensor in own.items():
        if name not in state:
            return f"state: got no {name!r}, expected it; load the state of this module"
        if state[name].shape != tensor.shape:
            return f"state: got {name!r} of {tuple(state[name].shape)}, expected {tuple(tensor.shape)}"
    return None
