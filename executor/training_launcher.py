"""Train with one process per rank on this machine, and bring back what the last stage says."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_model
from torch import nn

from executor.course import Course, NotComingBack, OnStep, Scores, Trained
from executor.lists import lists_of
from executor.processes import Processes
from executor.training import Training
from executor.training_job import TrainingJob, training_job_to_json
from executor.training_rank import training_of
from profiles.models.model import build_layers
from schedules.op import Op


def launch_training(job: TrainingJob, on_step: OnStep | None = None) -> Trained:
    """Run `job` with one process per rank.

    Args:
        on_step: Told of each step, soon after it was; may raise to end the run.

    Raises:
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
        ProfileError: There is no such model, or it cannot be built.
    """
    run = job.recipe.run(job.num_steps)
    lists = run.lists(job.num_steps)

    def op_at(rank: int, index: int) -> Op | None:
        return next(islice(lists_of(lists, {rank})[rank], index, None), None)

    course = Course(run.microbatches_per_step, on_step)
    with tempfile.TemporaryDirectory(prefix="pipesched-") as name:
        folder = Path(name)
        saved = folder / "weights"
        (folder / "job.json").write_text(training_job_to_json(replace(job, save=job.save or str(saved))))
        tails = [_Tail(scores_file(folder, rank), course) for rank in range(lists.num_ranks)]
        processes = Processes(folder, lists.num_ranks, op_at, threads=job.threads, timeout_s=job.timeout_s)
        try:
            processes.run(lambda done: _read(tails))  # noqa: ARG005 -- what is new is in the files
            _read(tails)
        except NotComingBack:
            return course.end()
        training = training_of(job, run.microbatches_per_step, torch.device("cpu"))
        return course.end(training.judge(_load(training, Path(job.save or saved))))


def scores_file(folder: Path, rank: int) -> Path:
    """Return where a rank writes the scores of its micro-batches."""
    return folder / f"scores{rank}.jsonl"


def scores_line(microbatch: int, scores: Scores) -> str:
    """Return one line of that file."""
    return json.dumps([microbatch, scores.loss, scores.accuracy]) + "\n"


class _Tail:
    """What has been written to a file, line by line, since one last looked."""

    def __init__(self, path: Path, course: Course) -> None:
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


def _load(training: Training, folder: Path) -> list[nn.Module]:
    """Return all stages with the weights that the ranks saved."""
    stages: list[nn.Module] = []
    for index, bounds in enumerate(training.bounds):
        stage = build_layers(training.model, *bounds, seed=training.seed, dtype=training.dtype)
        load_model(stage, str(folder / f"stage{index}.safetensors"))
        stages.append(stage)
    return stages
