"""The process of a rank, under torchrun or started by a launcher."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from pipesched.executor import LAUNCHER_S, ExecutionError
from pipesched.executor.launch import (
    Measure,
    RunSpec,
    WatchedRank,
    WatchedRun,
    connected,
    ranks_of_processes,
)
from pipesched.executor.runs.measuring_job import Measured, MeasuringJob
from pipesched.executor.runs.rank_job import RankJob, RankListener
from pipesched.executor.runs.rank_training import RankTraining
from pipesched.executor.runs.result_text import result_from_text, result_to_text
from pipesched.executor.training import Trained
from pipesched.executor.transport import share
from pipesched.profiles.models import Model, kept_random_state
from pipesched.schedules.common import LONGEST_S


@kept_random_state()
def run_rank(
    spec: RunSpec,
    listener: RankListener = RankListener(),  # noqa: B008 -- frozen
    meet: str = "env://",
    *,
    is_shared: bool = False,
    watch: WatchedRank | None = None,
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
        watch: Watches this rank, in a process that runs nothing else.
        model: The model of the run (default: looked up by name).

    Returns:
        The measurement, or the loss history of the training run, in the first process, or in all; None elsewhere.

    Raises:
        ExecutionError: The job cannot run, or an op failed (the message names rank, op and micro-batch).
        ScheduleError: The lists cannot finish, or do not exist for the number of steps.
        ProfileError: There is no such model, or it cannot be built.
    """
    if spec.transport == "streams":
        raise ExecutionError(
            "transport: got streams with a process per rank, expected one process; try `transport=processes`"
        )
    kind = MeasuringJob if isinstance(spec.job, Measure) else RankTraining
    job: RankJob[Any] = kind(spec, listener, model)
    ranks = ranks_of_processes(job.lists.rank_to_device)
    if watch is not None and int(os.environ["WORLD_SIZE"]) == len(ranks):  # another number is refused
        watch.run = WatchedRun(ranks, job.ops_of, spec.timeout_s, spec.device == "cpu", job.leave_request)
    with connected(spec if watch is None else patient(spec), job.lists, meet) as context:
        result: Measured | Trained | None = job.run(context)
        if watch is not None:
            watch.is_done = True
        if is_shared:
            text = "" if result is None else result_to_text(result)
            result = result_from_text(share(text, ranks[0]))
    return result


def patient(spec: RunSpec) -> RunSpec:
    """Return a run whose ranks time out later than the launcher or the watch, which know the cause of a standstill."""
    return replace(spec, timeout_s=min(spec.timeout_s + LAUNCHER_S, LONGEST_S))
