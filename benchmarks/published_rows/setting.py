"""The setting of a published run: all that an estimate needs."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage.model_shape import ModelShape
from published_rows.cuts import Cut, ImpossibleLayoutError, cut_of
from published_rows.machines import Machine, machine_of
from published_rows.models import model_shape
from published_rows.row import PublishedRun
from published_rows.trainers import Trainer, sharding_of, trainer_of

SUPPOSED_MICROBATCHES_PER_STAGE = 4
"""Micro-batches per stage of a run whose batch is unknown: the least with a small bubble (GPipe, arXiv:1811.06965)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A published run as numbers.

    Attributes:
        shape: Model.
        sharding: Split of its layers, and settings of the trainer.
        schedule: Schedule of the catalogue.
        depth: Ranks of the pipeline.
        chunks: Chunks of a rank.
        cut: Cut of the model into stages.
        microbatches: Micro-batches of an iteration.
        microbatch_size: Samples of a micro-batch.
        machine: GPU, node and network.
        num_gpus: Number of GPUs.
        trainer: Software.
        buffer_bytes: Buffers of the trainer.
        has_supposed_batch: The batch is unknown, and supposed.
    """

    shape: ModelShape
    sharding: LayerSharding
    schedule: str
    depth: int
    chunks: int
    cut: Cut
    microbatches: int
    microbatch_size: int
    machine: Machine
    num_gpus: int
    trainer: Trainer
    buffer_bytes: int
    has_supposed_batch: bool

    @property
    def tokens(self) -> int:
        """Tokens of an iteration."""
        return self.microbatches * self.microbatch_size * self.sharding.data * self.shape.sequence


def setting_of(run: PublishedRun) -> Setting:
    """Return the setting of a run.

    Raises:
        ImpossibleLayoutError: The trainer fails with this layout.
        ValueError: A number is missing, or contradicts another number.
    """
    trainer = trainer_of(run)
    data = _data(run)
    sharding = sharding_of(run, trainer, data)
    microbatch_size = run.micro_batch or 1
    microbatches = run.pp * SUPPOSED_MICROBATCHES_PER_STAGE
    if run.global_batch:
        microbatches = max(1, round(run.global_batch / (data * microbatch_size)))
    if trainer.refuses_few and microbatches < run.pp - 1:
        raise ImpossibleLayoutError(
            f"micro-batches are {microbatches}; the trainer refuses fewer than pp - 1 = {run.pp - 1}"
        )
    shape, chunks = model_shape(run), _chunks(run)
    return Setting(
        shape=shape,
        sharding=sharding,
        schedule=_schedule(run),
        depth=run.pp,
        chunks=chunks,
        cut=cut_of(shape, run.pp * chunks, trainer.cut),
        microbatches=microbatches,
        microbatch_size=microbatch_size,
        machine=machine_of(run),
        num_gpus=run.n_gpus or run.tp * run.pp * run.cp * data,
        trainer=trainer,
        buffer_bytes=trainer.buffer_bytes(run),
        has_supposed_batch=not (run.global_batch and run.micro_batch),
    )


def _data(run: PublishedRun) -> int:
    """Return the copies of the pipeline; a run without this number has the fewest copies that its experts need."""
    if run.dp:
        return run.dp
    pipeline = run.tp * run.pp * run.cp
    if run.n_gpus:
        if run.n_gpus % pipeline:
            raise ValueError(f"n_gpus is {run.n_gpus}; expected a multiple of tp x pp x cp, {pipeline}")
        return run.n_gpus // pipeline
    return max(1, run.ep // run.cp)


SCHEDULES = {"": "1f1b", "none": "1f1b", "zbb": "zb_h1", "zero-bubble": "zb_h1", "zbv-formatted": "zbv"}
"""Schedules of the catalogue by the name of a source. Primus' zero bubble is ZB-1P; that zbb is too, is supposed."""


def _schedule(run: PublishedRun) -> str:
    name = SCHEDULES.get(run.schedule, run.schedule)
    if run.pp == 1:
        return "1f1b"
    if name in ("1f1b", "interleaved"):
        return "interleaved" if run.vpp > 1 else "1f1b"
    return name


def _chunks(run: PublishedRun) -> int:
    return run.vpp if run.pp > 1 and _schedule(run) != "zb_h1" else 1
