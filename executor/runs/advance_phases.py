"""Train in phases whose forwards run further and further ahead, until that is no faster (`advance_policy`).

    lists     0 ahead        1 ahead        2 ahead        1 ahead
    steps     0 .. 5         6 .. 11        12 .. 17       18 .. the last
              all ranks meet |              |              |

In each phase the ranks run separate lists. In between they exchange the seconds of a batch and their peak memory, and
make the same decision. Weights, optimizers, references and the order of samples continue unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from pipesched.executor.core import Recorder, Stage, count_from, follow, lists_of, make_clock, make_meter
from pipesched.executor.launch import RankContext, Train, all_gather
from pipesched.executor.runs.local_training import TrainingSetup
from pipesched.executor.runs.rank_job import RankListener
from pipesched.executor.training import BATCHES, AdvancePolicy, AdvanceTrials
from pipesched.executor.transport import TensorShape
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op, Step


def lists_ahead(job: Train, advance: int, num_steps: int) -> Schedule:
    """Return the lists of `num_steps` steps of `job`, `advance` ahead."""
    schedule_spec = replace(job.schedule_spec, parameters={**job.schedule_spec.parameters, "advance": advance})
    return schedule_spec.run(num_steps).lists(num_steps)


def train_in_phases(
    training: TrainingSetup,
    context: RankContext,
    stages: Mapping[int, Stage],
    shapes: Mapping[int, TensorShape],
    listener: RankListener,
) -> AdvanceTrials:
    """Run all steps of a training job; return the trials of the advance.

    Args:
        training: The setup of the training run.
        context: Context of this rank.
        stages: Stages of this rank, built for lists of all steps.
        shapes: Shapes of the tensors between stages.
        listener: Called before each op, with the number of earlier ops in all phases, and at the start of each phase.
    """
    job = training.spec.job
    assert isinstance(job, Train), "of this kind"
    policy = AdvancePolicy(job.schedule_spec.num_microbatches // training.run.pipelines - 1, job.limit_bytes)
    clock, meter = make_clock(context.device), make_meter(context.device)
    num_done = num_ops = 0
    while num_done < job.num_steps:
        left = job.num_steps - num_done
        num_steps = left if policy.is_settled else min(BATCHES, left)
        listener.on_phase(policy.advance_trials, num_steps)
        lists = lists_ahead(job, policy.advance, num_steps)
        first = num_done * training.run.microbatches_per_step
        follow(stages, lists, context.rank)
        count_from(stages, first)
        recorder = Recorder(clock, None if policy.is_settled else meter, keeps=not policy.is_settled)
        me = context.join(lists, stages, shapes, recorder, _after(num_ops, listener.at), training.spec.compression)
        context.run(me, training.batch(lists, first))
        if not policy.is_settled and num_steps == BATCHES:
            policy.judge(*_measured(lists, context, recorder))
        num_done += num_steps
        num_ops += len(recorder)
    return policy.advance_trials


def _after(count: int, at: Callable[[int, Op], None]) -> Callable[[int, Op], None]:
    return lambda index, op: at(count + index, op)


def _measured(lists: Schedule, context: RankContext, recorder: Recorder) -> tuple[list[float], int | None]:
    """Return the seconds of all batches but the first, and the peak bytes of the fullest device; equal on all ranks.

    A batch lasts from one Step to the next, on the slowest rank, so that clocks need not agree.
    """
    ends_s = list(_batch_ends_s(lists_of(lists, {context.rank})[context.rank], recorder))
    mine_s = torch.tensor(ends_s, dtype=torch.float64).diff()
    batches_s = torch.stack(all_gather(mine_s)).amax(0)
    peak = torch.tensor([max(recorder.most_bytes(), default=-1)])
    peaks = [int(peak_bytes) for peak_bytes in all_gather(peak)]
    if min(peaks) < 0:
        return batches_s.tolist(), None
    held = dict.fromkeys(lists.rank_to_device, 0)
    for device, num_bytes in zip(lists.rank_to_device, peaks, strict=True):
        held[device] += num_bytes
    return batches_s.tolist(), max(held.values())


def _batch_ends_s(ops: Iterable[Op], recorder: Recorder) -> Iterator[float]:
    """Yield when the last Step of each batch was over, on this rank [s]."""
    ends_s = [end / 1e9 for op, (_, _, end) in zip(ops, recorder.times_ns(), strict=True) if isinstance(op, Step)]
    per_batch = len(ends_s) // BATCHES
    yield from ends_s[per_batch - 1 :: per_batch]
