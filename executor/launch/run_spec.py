"""The specification of a run, as one file: all that its processes need to know, whether it measures or trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from pipesched.executor import (
    EmulationSettings,
    ExecutionError,
    FaultSettings,
    LearningSettings,
    Repetitions,
    RunSettings,
    cut_fault,
    epsilon_fault,
    learning_faults,
    stream_fault,
    uses_streams,
)
from pipesched.executor.launch.injected_faults import read_fault
from pipesched.profiles import STRICT, ProfileError
from pipesched.profiles.costs import StageCosts
from pipesched.profiles.io import NameFromFile, one_line, parse_record, record_schema
from pipesched.schedules import Schedule
from pipesched.schedules.common import LONGEST_S, faults, shown
from pipesched.schedules.formats import from_json
from pipesched.schedules.transforms import ScheduleSpec, TrainingRun

_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(Repetitions, EmulationSettings):
    """A job that runs the lists of a schedule repeatedly and measures every op.

    Attributes:
        schedule: The schedule in JSON (schedules.formats.schedule_json).
        microbatch_size: Samples per micro-batch.
        emulate: Costs of stages that only take time; None to run the model.
        cluster: Cluster to emulate in JSON (`cluster_json`): device speeds, and links that delay messages; None for the
            real links.
    """

    kind: Literal["measure"] = "measure"
    schedule: str
    microbatch_size: int = 1
    emulate: StageCosts | None = None
    cluster: str | None = None

    __pydantic_config__ = STRICT

    @property
    def lists(self) -> Schedule:
        """The schedule, not lowered, made anew at each access."""
        return from_json(self.schedule, "the job's schedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When and where a training run writes checkpoints, and the checkpoint that it resumes from.

    A run without a flush is drained and refilled at each checkpoint, so `every` affects its results. So does an early
    drain when the run is asked to leave.

    Attributes:
        folder: Folder of the checkpoints.
        every: Steps from one checkpoint to the next.
        keep: Number of newest checkpoints to keep.
        start: Folder of the checkpoint to resume from; None to start from the beginning.
    """

    folder: str
    every: int = 100
    keep: int = 3
    start: str | None = None

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(LearningSettings):
    """Train a model for some steps.

    Attributes:
        schedule_spec: Makes the lists; every process does so for itself.
        num_steps: Optimizer steps.
        batch_size: Samples of a step, per pipeline if several pipelines are averaged.
        advance: ``auto``: forwards run further ahead until that is no faster (`advance_policy`); None: as in
            `schedule_spec`.
        limit_bytes: Memory limit of a device while forwards run ahead; None for no limit.
        checkpoints: Checkpoints on the way; None for none.
    """

    kind: Literal["train"] = "train"
    schedule_spec: ScheduleSpec
    num_steps: int
    batch_size: int
    advance: Literal["auto"] | None = None
    limit_bytes: int | None = None
    checkpoints: CheckpointSettings | None = None

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if isinstance(self.lr_milestones, list):  # as a file has them
            object.__setattr__(self, "lr_milestones", tuple(self.lr_milestones))

    @property
    def run(self) -> TrainingRun:
        """The training run of `num_steps` steps, made anew at each access."""
        return self.schedule_spec.run(self.num_steps)


Job: TypeAlias = Annotated[Measure | Train, Field(discriminator="kind")]
"""The parts of a run that depend on its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(RunSettings, FaultSettings):
    """One run by one process per rank: the job and its settings.

    Attributes:
        job: The job: measure lists, or train.
        model: The model's name, as `resolve_model` takes it; None when emulated.
        bounds: Half-open range of layers of every stage.
    """

    job: Job
    model: str | None = None
    bounds: tuple[tuple[int, int], ...] = ()

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if isinstance(self.inject, list):  # as a file has them
            object.__setattr__(self, "inject", tuple(self.inject))
        problems = [*self._faults(), *self._job_faults()]
        if problems:
            raise ExecutionError(one_line(problems))

    @property
    def measurement(self) -> Measure:
        """The job, which measures."""
        assert isinstance(self.job, Measure), "its job measures"
        return self.job

    @property
    def training(self) -> Train:
        """The job, which trains."""
        assert isinstance(self.job, Train), "its job trains"
        return self.job

    @property
    def has_checkpoints(self) -> bool:
        """Whether the job trains and writes checkpoints."""
        return isinstance(self.job, Train) and self.job.checkpoints is not None

    @property
    def is_emulated(self) -> bool:
        """Whether stages only take time."""
        return isinstance(self.job, Measure) and self.job.emulate is not None

    @property
    def is_in_one_process(self) -> bool:
        """Whether the launcher starts one process that measures all ranks, each on a stream of its device."""
        return isinstance(self.job, Measure) and self.job.emulate is None and uses_streams(self)

    def _faults(self) -> Iterator[str]:
        """Yield the faults of all fields but the job."""
        yield from faults(self)
        epsilon = None if self.is_emulated else epsilon_fault(self.dtype, self.optimizer)
        if epsilon is not None:
            yield f"dtype: {epsilon}"
        fault = cut_fault(self.bounds)
        if fault is not None:
            yield f"bounds: {fault}"
        if self.model is None and not self.is_emulated:
            yield "model: got none, expected a model, or costs to emulate"
        if self.is_emulated and self.transport == "streams":
            yield "transport: got streams with costs to emulate, expected processes: emulated stages block the host"
        elif (contradiction := stream_fault(self)) is not None:
            yield contradiction
        yield from self._injected_faults()

    def _injected_faults(self) -> Iterator[str]:
        """Yield the errors in the faults to inject."""
        if self.is_emulated and self.weights is not None:
            yield f"weights: got {self.weights} with costs to emulate, expected none: emulated stages have no weights"
        if self.is_emulated and self.is_finite_checked:
            yield "is_finite_checked: got True with costs to emulate, expected a model: emulated stages have no numbers"
        for text in self.inject:
            try:
                fault = read_fault(text)
            except ExecutionError as error:
                yield str(error)
            else:
                if self.is_emulated and fault.kind == "nan":
                    yield "inject: got nan with costs to emulate, expected a model: emulated stages have no numbers"

    def _job_faults(self) -> Iterator[str]:
        """Yield the faults of the job, and its conflicts with other fields."""
        if isinstance(self.job, Train):
            yield from _count_faults(self.job, num_steps=(1, _MOST), batch_size=(1, _MOST))
            own = [*faults(self.job)]
            may_continue = self.job.checkpoints is not None
            yield from own or learning_faults(self.job, self.optimizer, self.job.num_steps, may_continue=may_continue)
            if self.job.checkpoints is not None:
                yield from _count_faults(self.job.checkpoints, every=(1, _MOST), keep=(1, _MOST))
                if self.job.advance is not None:
                    yield (
                        "advance: got auto with checkpoints, expected no advance: a restart cannot repeat the "
                        "measurements of auto"
                    )
            advance, schedule_spec = self.job.advance, self.job.schedule_spec
            if advance is not None and not schedule_spec.takes("advance"):
                yield f"advance: got {advance} for {schedule_spec.name or 'lists'}, expected none; try avgpipe"
            return
        yield from faults(self.job)
        yield from _count_faults(self.job, microbatch_size=(1, _MOST))
        if self.job.emulate is None:
            if self.job.cluster is not None:
                yield (
                    "cluster: got a cluster without costs to emulate, expected no cluster: the messages of a model are "
                    "real"
                )
            return
        yield from _cost_faults(self.job.emulate)
        if self.device == "cuda":
            yield "device: got cuda with costs to emulate, expected cpu: emulated stages compute nothing"
        if self.compression is not None:
            yield "compression: got half with costs to emulate, expected none: the costs already state the compression"
        if self.averaging != "asynchronous":
            yield (
                "averaging: got synchronous with costs to emulate, expected no such setting: emulated stages have no "
                "reference model"
            )


def _count_faults(part: RunSpec | Job | CheckpointSettings, **limits: tuple[int, int]) -> Iterator[str]:
    """Yield a fault for each field that is not within its (least, most)."""
    for name, (least, most) in limits.items():
        value = getattr(part, name)
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            yield f"{name}: got {shown(value)}, expected {bound}"


def _cost_faults(costs: StageCosts) -> Iterator[str]:
    """Yield a fault for each time or size of a stage that is out of range."""
    for index, stage in enumerate(costs.stages):
        for field in fields(stage):
            most = LONGEST_S if field.name.endswith("_s") else 2**63 - 1
            value = getattr(stage, field.name)
            if value is not None and not 0 <= value <= most:
                yield (
                    f"emulate.stages.{index}.{field.name}: got {shown(value)}, expected 0 to {most:.7g}; try a smaller "
                    "number"
                )
    rate = None if costs.compression is None else costs.compression.convert_bytes_per_s
    if rate is not None and not rate > 0:
        yield f"emulate.compression.convert_bytes_per_s: got {rate:g}, expected more than 0"


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file; only `RunSpec` checks the ranges of numbers."""
    return record_schema(RunSpec)


def job_to_json(spec: RunSpec) -> str:
    """Return `spec` as the JSON of a job file."""
    return TypeAdapter(RunSpec).dump_json(spec, indent=1).decode()


def job_from_json(text: str, origin: str) -> RunSpec:
    """Return the run in a job file; its model counts as named by a file until that is trusted.

    Args:
        text: JSON.
        origin: Source of the text, for error messages.

    Raises:
        ExecutionError: The text is no valid job; lists the faults.
    """
    try:
        spec: Any = parse_record(RunSpec, text, origin, "correct it, or write the job again")
    except ProfileError as error:
        raise ExecutionError(str(error)) from None
    named: RunSpec = spec if spec.model is None else replace(spec, model=NameFromFile(spec.model, origin))
    return named
