"""A pipeline in one's own training loop, in one process or with a process per rank."""

from __future__ import annotations

import copy
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipesched.executor import ExecutionError, RunSettings
from pipesched.executor.core import Batch, StateError
from pipesched.executor.runs import LocalLoop, LoopSpec, OwnLoop, RankLoop, lists_of_batch
from pipesched.profiles import DTYPES, DeviceKind, Dtype, OptimizerName
from pipesched.profiles.io import profile_text, read_profile
from pipesched.profiles.models import Model, OptimizerFactory, Structure, Value, build_layers, tensors_of, trace_model
from pipesched.profiles.partitioning import parse_partition
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import with_step_barrier
from pipesched.simulator.analysis import readable_bytes
from pipesched.workflows import (
    ArgumentError,
    Table,
    is_rank,
    require_callable,
    require_flag,
    require_kind,
    require_optional,
    require_rate,
    require_settings,
)
from pipesched.workflows.arguments import ScheduleSource, as_tied, partition_text, require_possible
from pipesched.workflows.pipelines.batch_cutting import BatchForm, as_value, joined, one_tensor
from pipesched.workflows.pipelines.loop_loss import LoopLoss

if TYPE_CHECKING:
    from pipesched.workflows.arguments import ClusterArgument, PartitionArgument, ProfileArgument
    from pipesched.workflows.measuring import ProfileMeasurement
    from pipesched.workflows.simulating import Simulation


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
    of ranks. All processes then make the same calls in the same order, with the same batches.

    The pipeline has its own copy of the weights: `state_dict` returns them under the module's names. Each stage has an
    optimizer of its own. `optimizers` lists those of this process, so that learning rates follow the schedulers of
    PyTorch: ``[LambdaLR(optimizer, rate) for optimizer in pipe.optimizers]``. Random numbers of layers, as of dropout,
    depend on `seed` alone; the generators of the script stay as they are.

    Args:
        module: A module, a function that makes one, or a `Model`. Each process copies the layers of its own
            stages; with a function it allocates the weights of these layers only.
        schedule: A name of the catalogue, or a `Schedule` with the lists of one batch. Each stage steps once, at the
            end of its list: a schedule without a flush, or that averages pipelines, is refused.
        num_ranks: Ranks, with a schedule by name.
        microbatches: Equal micro-batches of a batch, with a schedule by name.
        loss: A function of (outputs, targets) of a micro-batch that returns its mean loss; None: the outputs are
            the loss, or have it as ``loss``; with a `Model`: the model's own.
        optimizer: Makes the optimizer of a stage from the list of its parameters.
        example: Inputs of one micro-batch: a tensor, a tuple of positional arguments, or a dictionary of keyword
            arguments. Each tensor has its samples in dimension 0.
        partition: ``uniform`` (None), ``balanced`` by the number of parameters, or layers per stage: ``[3, 3, 4]``.
        cuts: Names of submodules before which the module may be cut, in place of its blocks.
        dtype: Type of weights and floating-point data (default: as they are).
        autocast: ``torch.bfloat16`` to run forwards and loss under autocast; None without.
        device: ``cpu`` or ``cuda``.
        clip_grad_norm: Largest norm of the gradients of the whole model; None for no clipping.
        seed: Seed of the layers' random numbers, and of the weights that a function or a `Model` draws.
        timeout_s: Longest wait of a process for another one [s].

    Raises:
        ArgumentError: An argument is invalid.
        ExecutionError: The schedule has no flush, the processes do not agree, or the module does not run.
        ProfileError: The module cannot be cut.
        ScheduleError: There is no such schedule.
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module] | Model,
        *,
        schedule: str | Schedule,
        num_ranks: int | None = None,
        microbatches: int | None = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
        optimizer: OptimizerFactory,
        example: Any,
        partition: PartitionArgument | None = None,
        cuts: Sequence[str] = (),
        dtype: torch.dtype | None = None,
        device: DeviceKind = "cpu",
        autocast: torch.dtype | None = None,
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
        if autocast not in (None, torch.bfloat16):
            raise ArgumentError(
                f"autocast: got {autocast}, expected torch.bfloat16 or None, as gradients are not scaled; try "
                "torch.bfloat16"
            )
        used_loss = module.loss if loss is None and isinstance(module, Model) else loss
        self._loss = LoopLoss(used_loss, torch.device(device), autocast)
        lists = lists_of_batch(self._schedule)
        self._model = _read_model(module, self._loss, example, cuts)
        bounds = _bounds(self._model, partition, self._schedule.num_stages)
        if self._model.ties:
            self._schedule = as_tied(ScheduleSource(self._schedule), self._model, bounds).schedule
            lists = lists_of_batch(self._schedule)
        self._targets: Value = ()
        self._structure = self._loss.targets
        self._state = "open"
        spec = LoopSpec(
            schedule=lists,
            model=self._model,
            bounds=bounds,
            settings=settings,
            optimizer=_checked(optimizer),
            keeps_dtype=dtype is None,
            sample=self._form.sample,
            autocast=autocast,
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
            inputs: Inputs of the batch, with the structure of the example and the samples of all micro-batches.
            targets: Targets with as many samples; None where the inputs contain them.
            update: False to only add gradients. The next update takes the mean gradient of all batches since the last.
            record: Whether `timeline` can return this step; recording its times and memory takes a little time.

        Raises:
            ArgumentError: The batch cannot be divided, or has other shapes than the example.
            ExecutionError: An op failed; the message names rank, op and micro-batch. The pipeline is then closed.
        """
        require_flag("update", update)
        require_flag("record", record)
        (batch,) = self._cut(inputs, targets, is_whole=True)
        if targets is None and self._loss.needs_targets:
            raise ArgumentError("targets: got none, expected targets for the loss; pass targets=")
        self._targets, self._structure = batch.targets[0], self._loss.targets
        with self._in_turn("step" if update else "step without update"):
            return self._loop.step(batch, updates=update, records=record)

    def evaluate(self, inputs: Any, targets: Any = None) -> Any:
        """Run the module forward, in evaluation mode and without gradients; weights and generators do not change.

        Args:
            inputs: Inputs with the structure of the example, and any number of micro-batches.
            targets: Targets, to return the mean loss; None to return the outputs.

        Returns:
            The mean loss with targets; without targets the outputs of all samples. An output without dimensions, such
            as a loss, becomes one number per micro-batch. All are on the CPU, and equal in every process.

        Raises:
            ArgumentError: The samples cannot be divided, or have other shapes than the example.
            ExecutionError: An op failed; the message names rank, op and micro-batch. The pipeline is then closed.
        """
        outputs: list[Value] = []
        batches = self._cut(inputs, targets, is_whole=False)
        with self._in_turn("evaluate"):
            for batch in batches:
                own = self._loop.evaluate(batch, is_scored=targets is not None)
                outputs += self._everyones(own, len(batch.inputs))
        if targets is not None:
            return torch.stack([*map(one_tensor, outputs)]).mean()
        self._loss.returns_outputs = True
        try:
            return self._model.loss(joined(outputs), ())
        finally:
            self._loss.returns_outputs = False

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights and buffers of the whole module, on the CPU, in every process.

        The names are the names in the module's own ``state_dict``. A `Model` uses the names of a
        ``torch.nn.Sequential`` of its layers.

        Raises:
            ExecutionError: A process is missing.
        """
        with self._in_turn("state_dict"):
            return self._loop.state()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load weights and buffers, as `state_dict` returns them; every process has all of them, and keeps its part.

        Raises:
            ArgumentError: A name is missing or unknown, or a tensor has another shape; some tensors may be loaded then.
            ExecutionError: A process is missing.
        """
        fault = ""
        with self._in_turn("load_state_dict"):
            try:
                self._loop.load(state)
            except StateError as error:
                fault = str(error)
            faults = [text for text in self._loop.gather_texts(fault) if text.strip()]
        if faults:
            raise ArgumentError(f"state: {faults[0]}; load the state of this module")

    def timeline(self) -> Timeline:
        """Return the measured Timeline of the last step with ``record=True``, equal in every process.

        In one process without GPUs the ranks take turns, so the times of their ops do not overlap.

        Raises:
            ArgumentError: No step was recorded.
            ExecutionError: A process is missing.
        """
        with self._in_turn("timeline"):
            timeline = self._loop.timeline()
        if timeline is None:
            raise ArgumentError("timeline: got no recorded step, expected at least one; try step(..., record=True)")
        return timeline

    def profile(self) -> ProfileMeasurement:
        """Measure the layers of the model with micro-batches of the loop; only the first process measures.

        The profile has the costs of every schedule: of backwards as a whole, and of their halves.

        The optimizer's step is measured with the nearest of SGD, SGD with momentum, Adam and AdamW.

        Raises:
            ArgumentError: No batch was trained on, and the loss needs targets.
            ExecutionError: A process is missing.
        """
        from pipesched.workflows.measuring import ProfileMeasurement, profile

        if self._loss.needs_targets and not tensors_of(self._targets):
            raise ArgumentError(
                "profile: got no step before, expected one, because the loss needs its targets; call step(...) first"
            )
        settings, text = self._spec.settings, ""
        with self._in_turn("profile"):
            if self._loop.is_first:
                self._loss.targets = self._structure
                model = replace(self._model, batch=self._batch_of_profile)
                measured = profile(
                    model, [self._form.size], dtype=self._dtype(), device=settings.device, threads=settings.threads,
                    seed=settings.seed, optimizer=_nearest(self.optimizers),
                )  # fmt: skip
                text = profile_text(measured.profile, "the profile")
            text = self._loop.gather_texts(text)[0]
        return ProfileMeasurement(read_profile(text, "the profile"))

    def predict(self, profile: ProfileArgument | None = None, cluster: ClusterArgument = None) -> Simulation:
        """Predict the step: its time, bubbles and memory, as `simulate` does, on a device per rank.

        Args:
            profile: Profile of the layers; None to measure one with `profile`.
            cluster: Machines; None: equal devices whose messages take no time.

        Raises:
            ArgumentError: As for `profile`, or an argument is invalid.
            ExecutionError: A process is missing.
        """
        from pipesched.workflows.arguments import read_profile_argument
        from pipesched.workflows.simulating import Setup, simulate

        costs = self.profile().profile if profile is None else read_profile_argument(profile)
        sizes = [last - first for first, last in self._spec.bounds]
        return simulate(self._schedule, Setup(costs, cluster=cluster, microbatch_size=self._form.size, partition=sizes))

    def table(self) -> Table:
        """Return the stages: their ranks, layers and parameters, and the bytes that each sends on per micro-batch."""
        loop, names = self._loop, self._model.layer_names
        rows = tuple(
            {
                "stage": str(stage),
                "rank": ", ".join(map(str, self._schedule.replicas(stage))),
                "layers": names[first] if last == first + 1 else f"{names[first]} to {names[last - 1]}",
                "parameters": f"{loop.parameter_counts[stage]:,}",
                "sends": readable_bytes(loop.boundary_bytes[stage]) if stage in loop.boundary_bytes else "-",
            }
            for stage, (first, last) in enumerate(self._spec.bounds)
        )
        schedule = self._schedule
        counts = f"{schedule.num_ranks} ranks, {schedule.num_microbatches} micro-batches"
        title = f"{self._model.name}: {schedule.name}, {counts}"
        return Table(title, rows, legend={"sends": "to the next stage, per micro-batch"})

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

    def _batch_of_profile(self, num_samples: int, seed: int) -> tuple[Value, Value]:  # noqa: ARG002 -- as a model has it
        return self._form.sample, self._targets

    def _dtype(self) -> Dtype:
        """Return the name of the type of the first parameter of a stage in this process."""
        if not self._spec.keeps_dtype:
            return self._spec.settings.dtype
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        types = (tensor.dtype for group in groups for tensor in group["params"] if tensor.is_floating_point())
        name = str(next(types, torch.float32)).removeprefix("torch.")
        return cast("Dtype", name)

    def __str__(self) -> str:
        return self.table().to_text()

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def __repr__(self) -> str:
        return f"Pipeline({self._model.name!r}, schedule={self._schedule.name!r}, num_ranks={self._schedule.num_ranks})"

    def _cut(self, inputs: Any, targets: Any, *, is_whole: bool) -> list[Batch]:
        self._require_open()
        labels, structure = ((), Structure(None)) if targets is None else as_value("targets", targets)
        batches = self._form.cut(inputs, labels, is_whole=is_whole)
        self._loss.targets = structure
        return batches

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
            raise ExecutionError(
                f"pipeline: got a call after the pipeline {self._state}, expected none; make a new Pipeline"
            )

    def _fail(self, error: BaseException) -> None:
        self._state = "has failed"
        self._finalizer.detach()
        self._loop.close(error)


def _leave(loop: OwnLoop) -> None:
    """Leave without waiting for other processes, when the script ends or forgets the pipeline."""
    loop.close(ExecutionError("pipeline: got no call of close() before its end, expected one; call close()"))


def _read_schedule(schedule: object, num_ranks: object, microbatches: object, clip_grad_norm: float | None) -> Schedule:
    require_kind("schedule", schedule, str | Schedule, "a name of the catalogue, as 1f1b, or a Schedule")
    if isinstance(schedule, Schedule):
        for name, got, own in (
            ("num_ranks", num_ranks, schedule.num_ranks),
            ("microbatches", microbatches, schedule.num_microbatches),
        ):
            if got is not None and got != own:
                raise ArgumentError(f"{name}: got {got!r}, expected {own}, the number of the schedule; leave it out")
        lists = schedule.held()
    else:
        assert isinstance(schedule, str), "its kind"
        for name, got in (("num_ranks", num_ranks), ("microbatches", microbatches)):
            if got is None:
                raise ArgumentError(f"{name}: got none with schedule {schedule}, expected a number; try {name}=2")
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


def _read_model(module: object, loss: LoopLoss, example: Any, cuts: Sequence[str]) -> Model:
    """Return the model of a loop; a ready-made module is copied, range by range."""
    if isinstance(cuts, str):
        raise ArgumentError(f"cuts: got {cuts!r}, expected a list of names; try [{cuts!r}]")
    if isinstance(module, Model):
        if cuts:
            raise ArgumentError(
                "cuts: got names with a Model, expected none, as the layers of a Model are known; leave `cuts` out"
            )
        return replace(module, loss=loss)
    if isinstance(module, nn.Module):
        if any(tensor.is_meta for tensor in module.state_dict().values()):
            raise ArgumentError(
                "module: got weights on the meta device, expected values; pass a function that makes the module"
            )
        model = trace_model(type(module).__name__, module, loss, None, cuts, example)
        assert model.build_range is not None, "a traced module has one"
        return replace(model, build_range=partial(_copied_range, model.build_range))
    if not callable(module):
        require_kind("module", module, nn.Module, "an nn.Module, a function that makes one, or a Model")
    assert callable(module), "its kind"
    return trace_model(getattr(module, "__name__", "module"), module, loss, None, cuts, example)


def _copied_range(
    build_range: Callable[[int, int, int], Sequence[nn.Module]], first: int, last: int, seed: int
) -> Sequence[nn.Module]:
    """Return layers with parameters of their own; parameters that layers share are shared by their copies."""
    return copy.deepcopy(build_range(first, last, seed))


def _checked(optimizer: OptimizerFactory) -> OptimizerFactory:
    """Return a function that refuses anything but an optimizer of the given parameters."""

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made = optimizer(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise ArgumentError(f"optimizer: got a function that returns {type(made).__name__}, expected an optimizer")
        own = {id(parameter) for parameter in parameters}
        if any(id(parameter) not in own for group in made.param_groups for parameter in group["params"]):
            raise ArgumentError(
                "optimizer: got an optimizer that ignores the parameters in its argument, expected these parameters, "
                "as the pipeline trains a copy of the module; try lambda parameters: torch.optim.SGD(parameters, "
                "lr=0.1)"
            )
        return made

    return make


def _bounds(model: Model, partition: PartitionArgument | None, num_stages: int) -> tuple[tuple[int, int], ...]:
    sizes = [1.0] * len(model.layers)
    if partition == "balanced":
        built = (build_layers(model, index, index + 1, seed=0) for index in range(len(sizes)))
        sizes = [float(sum(parameter.numel() for parameter in layer.parameters())) for layer in built]
    return parse_partition(partition_text(partition) or "uniform", sizes, num_stages)


def _is_one_of_several() -> bool:
    """Return whether this process runs one rank, and other processes the others."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return is_rank() and os.environ["WORLD_SIZE"] != "1"


def _nearest(optimizers: Sequence[torch.optim.Optimizer]) -> OptimizerName:
    """Return the name of the known optimizer whose step takes about as long as the user's."""
    match next(iter(optimizers), None):
        case torch.optim.SGD() as sgd:
            return "momentum" if sgd.defaults["momentum"] else "sgd"
        case torch.optim.AdamW():
            return "adamw"
        case torch.optim.Adam():
            return "adam"
    return "adamw"
