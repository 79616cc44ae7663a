"""Train with one process per rank on this machine, and bring back what the last stage says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from itertools import chain, islice
from pathlib import Path

import torch
from safetensors.torch import load_model
from torch import nn

from pipesched.executor.core import averagers, lists_of
from pipesched.executor.launch import Processes, TrainingSpec, job_folder, training_job_to_json
from pipesched.executor.runs.advance_phases import lists_ahead
from pipesched.executor.runs.local_training import TrainingSetup
from pipesched.executor.runs.training_rank import training_of
from pipesched.executor.training import AdvanceTrials, LossHistory, NotComingBack, OnStep, Scores, Trained, Trial
from pipesched.profiles.io import require_trusted
from pipesched.profiles.models import build_layers
from pipesched.schedules import LazySchedule, Op


def launch_training(job: TrainingSpec, on_step: OnStep | None = None) -> Trained:
    """Run `job` with one process per rank.

    Args:
        on_step: Told of each step, soon after it was; may raise to end the run.

    Raises:
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
        ProfileError: There is no such model, it cannot be built, or a file names what is imported.
    """
    require_trusted(job.model)  # what the ranks read is ours
    run = job.recipe.run(job.num_steps)
    lists = run.lists(job.num_steps)
    averagers(lists)  # before any process is started

    def op_at(rank: int, index: int) -> Op | None:
        phases = [lists] if job.advance is None else _phases(job, folder)
        ops = chain.from_iterable(lists_of(each, {rank})[rank] for each in phases)
        return next(islice(ops, index, None), None)

    course = LossHistory(run.microbatches_per_step, on_step)
    with job_folder() as folder:
        saved = folder / "weights"
        (folder / "job.json").write_text(training_job_to_json(replace(job, save=job.save or str(saved))))
        tails = [_Tail(scores_file(folder, number), course) for number in range(lists.num_ranks)]
        processes = Processes(
            folder, lists.rank_to_device, op_at, threads=job.threads, timeout_s=job.timeout_s, device=job.device
        )
        try:
            processes.run(lambda done: _read(tails))  # noqa: ARG005 -- what is new is in the files
            _read(tails)
        except NotComingBack:
            return course.end()
        training = training_of(job, run, torch.device("cpu"))
        trained = course.end(training.judge(_load(training, Path(job.save or saved))))
        return trained if job.advance is None else replace(trained, ahead=_found(folder))


def scores_file(folder: Path, number: int) -> Path:
    """Return where a process writes the scores of its rank's micro-batches."""
    return folder / f"scores{number}.jsonl"


def scores_line(microbatch: int, scores: Scores) -> str:
    """Return one line of that file."""
    return json.dumps([microbatch, scores.loss, scores.accuracy]) + "\n"


def phases_file(folder: Path) -> Path:
    """Return where the first process writes how far ahead each phase runs."""
    return folder / "phases.jsonl"


def phase_line(found: AdvanceTrials, num_steps: int) -> str:
    """Return one line of that file."""
    return json.dumps([num_steps, found.advance, [astuple(trial) for trial in found.trials]]) + "\n"


def _phases(job: TrainingSpec, folder: Path) -> Iterator[LazySchedule]:
    """Yield the lists of the phases that have begun."""
    for line in phases_file(folder).read_text().splitlines() if phases_file(folder).exists() else ():
        num_steps, advance, _ = json.loads(line)
        yield lists_ahead(job, advance, num_steps)


def _found(folder: Path) -> AdvanceTrials:
    """Return what the last phase has begun with, which is all there was to find."""
    _, advance, trials = json.loads(phases_file(folder).read_text().splitlines()[-1])
    return AdvanceTrials(advance, tuple(Trial(*trial) for trial in trials))


class _Tail:
    """What has been written to a file, line by line, since one last looked."""

    def __init__(self, path: Path, course: LossHistory) -> None:
        self._path = path
        self._course = course
        self._place = 0

    def read(self) -> None:
        """Hand on the new lines, but for one that is not whole yet."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._place += len(whole) + len(newline)
        for line in whole.splitlines():
            microbatch, loss, accuracy = json.loads(line)
            self._course.add(microbatch, Scores(loss, accuracy))


def _read(tails: list[_Tail]) -> None:
    for tail in tails:
        tail.read()


def _load(training: TrainingSetup, folder: Path) -> list[nn.Module]:
    """Return all stages with the weights that the ranks saved."""
    stages: list[nn.Module] = []
    for index, bounds in enumerate(training.bounds):
        stage = build_layers(training.model, *bounds, seed=training.seed, dtype=training.dtype)
        load_model(stage, str(folder / f"stage{index}.safetensors"))
        stages.append(stage)
    return stages
