"""Run a schedule with real processes, one per rank, and measure every op."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipesched.profiles.models import Model
from pipesched.workflows import asks, is_rank
from pipesched.workflows.arguments import read_lists_argument, require_possible
from pipesched.workflows.measuring.run_result import RunResult, result_of
from pipesched.workflows.measuring.run_specs import RunQuestion, spec_of

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec
    from pipesched.executor.runs import Measured


@asks(RunQuestion)
def run(question: RunQuestion) -> RunResult:
    """Run a schedule, one process per rank, and measure every op.

    The processes are started here, on this machine. In a script that torchrun has started, this process joins as its
    rank instead, and every process gets the result. `close` ends the processes that stay for the next run.

    Args:
        schedule: A Schedule, as `build` makes it, a Plan, or a file of either.
        model: A name as `profile` takes it, a plan's own, a function of a module, or a Model made from a name; under
            torchrun any Model. Or a `Setup`, or its costs, to emulate: stages only take time, and links delay messages;
            without machines, messages take their real time.
        profile: Profile of the model, for the partition: ``balanced`` with a profile, ``uniform`` without.
        progress: Receives the finished fraction of all ops now and then.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: A bad file.
        ProfileError: The model does not exist, the partition does not fit, or a file is bad.
        ExecutionError: A value is out of range.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
    """
    require_possible(question)
    source = read_lists_argument(question.schedule)
    spec = spec_of(question, source)
    made = question.model if isinstance(question.model, Model) else None
    return result_of(source, measured(spec, question.progress, made), question.profile)


@asks(RunQuestion)
def run_job(question: RunQuestion) -> RunSpec:
    """Return the job of a run, as `run` does it, for ``torchrun -m pipesched.executor``."""
    return spec_of(question, read_lists_argument(question.schedule))


def measured(
    spec: RunSpec,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    model: Model | None = None,
) -> Measured:
    """Run a measuring job: as a rank if torchrun has started this process, otherwise in processes that it starts.

    Args:
        spec: Specification of the run.
        progress: Receives the finished fraction of all ops now and then.
        model: The named model of the run, as under torchrun; None: the name is looked up.

    Raises:
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch.
    """
    from pipesched.executor.runs import Measured, launch, run_rank

    if not is_rank():
        return launch(spec, progress)
    measured = run_rank(spec, is_shared=True, model=model)
    assert isinstance(measured, Measured), "its job measures"
    return measured
