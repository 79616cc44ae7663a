"""The process of a rank, under torchrun or started by a launcher."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pipesched.executor import ExecutionError
from pipesched.executor.launch import GuardedRank, Measure, RunSpec, connected_as, ranks_of_processes, share
from pipesched.executor.runs.measuring_job import Measured, MeasuringJob
from pipesched.executor.runs.rank_job import RankJob, RankListener
from pipesched.executor.runs.result_text import result_from_text, result_to_text
from pipesched.executor.runs.training_job import TrainingJob
from pipesched.executor.training import Trained
from pipesched.profiles.models import Model, kept_random_state


@kept_random_state()
def run_rank(
    spec: RunSpec,
    listener: RankListener = RankListener(),  # noqa: B008 -- frozen
    meet: str = "env://",
    *,
    is_shared: bool = False,
    guarded: GuardedRank | None = None,
    model: Model | None = None,
) -> Measured | Trained | None:
    """Run this process' rank of `spec`; RANK and WORLD_SIZE are in the environment, as torchrun sets them.

    Under torchrun a training run that diverges is not ended early: to stop at the same op, the ranks would have to wait
    for each other after each step, which a schedule without a flush avoids. The result contains the step at which it
    diverged. (`launch_training` watches the losses from outside, and ends the processes.)

    Args:
        spec: Specification of the run; its model is trusted.
        listener: Callbacks for the progress of the rank.
        meet: Meeting point of the ranks: an ``init_method`` of torch.distributed.
        is_shared: Whether every process returns the result, and not only the first.
        guarded: Notes the position of this rank for its guard, in a process that runs nothing else.
        model: The model of the run (default: looked up by name).

    Returns:
        The measurement, or the loss history of the training run, in the first process, or in all; None elsewhere.

    Raises:
        ExecutionError: The job cannot run, or an op failed: with rank, op and micro-batch.
        ScheduleError: The lists cannot finish, or do not exist for the number of steps.
        ProfileError: There is no such model, or it cannot be built.
    """
    if spec.transport == "streams":
        raise ExecutionError(
            "transport: got streams with a process per rank, expected one process; try `transport=processes`"
        )
    kind = MeasuringJob if isinstance(spec.job, Measure) else TrainingJob
    job: RankJob[Any] = kind(spec, listener, model)
    ranks = ranks_of_processes(job.lists.rank_to_device)
    with (
        nullcontext() if guarded is None else _beside(guarded, spec, job, ranks),
        connected_as(spec, job.lists, meet) as context,
    ):
        result: Measured | Trained | None = job.run(context)
        if guarded is not None:
            guarded.done()
        if is_shared:
            text = "" if result is None else result_to_text(result)
            result = result_from_text(share(text, ranks[0]))
    return result


def _beside(
    guarded: GuardedRank, spec: RunSpec, job: RankJob[Any], ranks: Sequence[int]
) -> AbstractContextManager[None]:
    """Return the context in which a guard runs beside this process, if it has a rank in the run."""
    process = int(os.environ["RANK"])
    if process >= len(ranks):
        return nullcontext()  # it is refused
    return guarded.guarded(
        ranks[process], len(ranks), job.ops_of, is_on_cpus=spec.device == "cpu", request=job.leave_request
    )
