"""A training run: a schedule for any number of steps, and the micro-batches of a step.

A *step* is one optimizer step of the model. It has the fewest micro-batches after which every stage has stepped equally
often, or a whole number of times if replicas take turns (1F1B-RR). The op lists show this number: m, the whole batch,
under GPipe, `accumulate` under PipeDream-2BW, one under PipeDream. So runs of different schedules can use the same
samples in each step, with micro-batches of different sizes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, lcm

from pipesched.schedules import Schedule, ScheduleError, repeat
from pipesched.schedules.builders import ParameterValue, build, build_generated, find
from pipesched.schedules.columns import cell_code, op_cells
from pipesched.schedules.common import positive
from pipesched.schedules.ops import ENDS_MICROBATCH, Op, Reduce, Step, computes, stages_of


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A schedule as a training run.

    Attributes:
        name: The schedule's name.
        microbatches_per_step: Number of micro-batches of a step.
        lists: A function from a number of steps to the lists of these steps.
        beginning: A function from a number of steps to lists of at least this number, equal to the first steps of a
            longer run, even if a parameter counts micro-batches of the whole run.
        part: A function from (steps before, steps) to the lists of a later part of the run.
        pipelines: Averaged copies of the model, each with its own batch in a step.
        flush_steps: Steps of the repeated lists, which end with no micro-batch in flight, or None without repeated
            lists.
        counts_run: Whether a parameter counts micro-batches of the whole run, so that its parts differ.
    """

    name: str
    microbatches_per_step: int
    lists: Callable[[int], Schedule]
    beginning: Callable[[int], Schedule]
    part: Callable[[int, int], Schedule]
    pipelines: int = 1
    flush_steps: int | None = None
    counts_run: bool = False

    def microbatch_size(self, batch_size: int) -> int:
        """Return the samples of a micro-batch, given the samples of a batch."""
        return self.pipelines * batch_size // self.microbatches_per_step

    def changed(self, change: Callable[[Schedule], Schedule]) -> TrainingRun:
        """Return the run with `change` applied to its lists of any length."""
        return replace(
            self,
            lists=lambda steps: change(self.lists(steps)),
            beginning=lambda steps: change(self.beginning(steps)),
            part=lambda first, steps: change(self.part(first, steps)),
        )


def training_run(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    num_steps: int,
    num_chunks: int | None = None,
    **parameters: ParameterValue,
) -> TrainingRun:
    """Return the run of the schedule `name`.

    Args:
        name: Name of the schedule in the catalogue.
        num_ranks: Ranks of the pipeline.
        num_microbatches: Micro-batches of a batch, for schedules that step after a batch; also the default of the
            parameter `accumulate`. Other schedules step after fewer micro-batches.
        num_steps: Steps of the whole run: an upper limit for parameters that count over it (``pipelined``).
        num_chunks: Stages per rank, where the schedule takes them.
        parameters: Parameters of the schedule.

    Raises:
        ScheduleError: The schedule or a parameter is unknown, or a count is invalid for it.
    """
    entry = find(name)
    if entry.build_generated is None:
        return repeated_run(build(name, num_ranks, num_microbatches, num_chunks, **parameters))
    positive(num_steps=num_steps, num_microbatches=num_microbatches)
    if any(parameter.name == "accumulate" for parameter in entry.parameters):
        parameters.setdefault("accumulate", num_microbatches)
    counting = {parameter.name for parameter in entry.parameters if parameter.counts_run}

    def reaching(count: int) -> Schedule:
        within = {
            key: min(value, count) for key, value in parameters.items() if key in counting and isinstance(value, int)
        }
        return build_generated(name, num_ranks, count, num_chunks, **(parameters | within))

    per_step = microbatches_per_step(reaching(num_steps * num_microbatches))

    def lists(steps: int) -> Schedule:
        return build_generated(name, num_ranks, steps * per_step, num_chunks, **parameters)

    def part(first: int, steps: int) -> Schedule:
        left = dict(parameters)
        for key in counting:
            value = parameters.get(key)
            if not isinstance(value, int):
                raise ScheduleError(
                    f"{entry.name}: got no {key}, expected a value, as a run in parts needs it; try "
                    f"{key}={num_steps * per_step // 2}"
                )
            left[key] = max(0, min(value - first * per_step, steps * per_step))
        return build_generated(name, num_ranks, steps * per_step, num_chunks, **left)

    lists(num_steps)  # refuses parameters that count over the run, however few of its steps are used
    return TrainingRun(
        entry.name, per_step, lists, lambda steps: reaching(steps * per_step), part, counts_run=bool(counting)
    )


def repeated_run(schedule: Schedule) -> TrainingRun:
    """Return the run that repeats the lists of `schedule`.

    Raises:
        ScheduleError: Some stage never steps, or its Steps follow different numbers of micro-batches.
    """
    per_step = microbatches_per_step(schedule)
    _require_even(schedule)
    steps_per_list = schedule.num_microbatches // per_step

    def lists(steps: int) -> Schedule:
        times, rest = divmod(steps, steps_per_list)
        if rest or not times:
            near = steps_per_list * max(1, times)
            raise ScheduleError(
                f"{schedule.name}: got {steps} steps, expected a multiple of {steps_per_list}, the steps of its lists; "
                f"try {near}"
            )
        return repeat(schedule, times)

    def beginning(steps: int) -> Schedule:
        return repeat(schedule, ceil(steps / steps_per_list))

    return TrainingRun(
        schedule.name,
        per_step,
        lists,
        beginning,
        part=lambda first, steps: lists(steps),  # noqa: ARG005 -- all are alike
        pipelines=schedule.pipelines,
        flush_steps=steps_per_list,
    )


def with_steps(schedule: Schedule) -> Schedule:
    """Return `schedule` with a Step of every stage at the end of its lists, if it has no Step.

    PyTorch's files leave the optimizer to their caller. Before the Step, replicas sum their gradients.
    """
    if schedule.columns.counts[op_cells.STEP]:
        return schedule
    holders = Counter(stage for row in schedule.ops for stage in stages_of(row))
    rows = []
    for row in schedule.ops:
        more: list[Op] = []
        for stage in stages_of(row):
            if holders[stage] > 1 and Reduce(stage) not in row:
                more.append(Reduce(stage))
            more.append(Step(stage))
        rows.append((*row, *more))
    return replace(schedule, lists=tuple(rows))


def microbatches_per_step(schedule: Schedule) -> int:
    """Return the fewest micro-batches after which every stage has stepped a whole number of times.

    Reads each list up to the first Step of its stages.

    Raises:
        ScheduleError: A stage never steps.
    """
    per_stage: Counter[int] = Counter()
    for rank in range(schedule.num_ranks):
        per_stage.update(_before_first_steps(schedule, rank, schedule.stages_on(rank)))
    return lcm(*per_stage.values())


def _require_even(schedule: Schedule) -> None:
    """Refuse lists with Steps of a stage that follow different numbers of micro-batches on a rank."""
    for rank in range(schedule.num_ranks):
        sizes: defaultdict[int, set[int]] = defaultdict(set)
        size: Counter[int] = Counter()
        for stage, is_step in _ends_and_steps(schedule, rank):
            if is_step:
                sizes[stage].add(size.pop(stage, 0))
            else:
                size[stage] += 1
        for stage in schedule.stages_on(rank):
            if len(sizes[stage]) > 1 or size[stage]:
                raise ScheduleError(
                    f"{schedule.name}: got {Step(stage)} on rank {rank} after "
                    f"{', '.join(map(str, sorted(sizes[stage])))} micro-batches, and {size[stage]} micro-batches after "
                    "the last Step, expected the same number before each Step; move the Step"
                )


def _before_first_steps(schedule: Schedule, rank: int, stages: Iterable[int]) -> Mapping[int, int]:
    """Return the number of micro-batches of each stage that end on `rank` before the stage's first Step."""
    microbatches: Counter[int] = Counter()
    waiting = set(stages)
    for stage, is_step in _ends_and_steps(schedule, rank) if waiting else ():
        if is_step:
            waiting.discard(stage)
            if not waiting:
                break
        else:
            microbatches[stage] += stage in waiting
    if waiting:
        raise ScheduleError(
            f"{schedule.name}: got no {Step(min(waiting))} on rank {rank}, expected every stage to step; add it"
        )
    return microbatches


def _ends_and_steps(schedule: Schedule, rank: int) -> Iterator[tuple[int, bool]]:
    """Yield (stage, whether it is a Step) for each end of a micro-batch and each Step on `rank`, in order."""
    if not schedule.is_held:
        for op in schedule.lists[rank]:
            yield from ((part.stage, False) for part in computes(op) if part.phase in ENDS_MICROBATCH)
            if isinstance(op, Step):
                yield op.stage, True
        return
    columns = schedule.columns
    cells = slice(int(columns.begins[rank]), int(columns.begins[rank + 1]))
    codes, stages = columns.codes[cells].tolist(), columns.stages[cells].tolist()
    is_step_of = {op_cells.STEP: True}
    is_step_of |= {code + at: False for code in map(cell_code, ENDS_MICROBATCH) for at in (0, op_cells.OVERLAPPED)}
    yield from ((stage, is_step_of[code]) for code, stage in zip(codes, stages, strict=True) if code in is_step_of)
