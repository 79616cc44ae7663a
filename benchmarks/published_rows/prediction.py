"""The prediction of a published run, or the reason that it has none."""

from __future__ import annotations

from dataclasses import dataclass, replace

from published_rows.cuts import ImpossibleLayoutError
from published_rows.estimate import IterationEstimate, estimate
from published_rows.row import BadRow, PublishedRun
from published_rows.setting import Setting, setting_of

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of a row.

    Attributes:
        id: Name of the row.
        predicted_s: Seconds of an iteration, or None.
        predicted_peak_gib: Peak memory that the source would publish [GiB], or None.
        fits: Whether the run fits into the memory of its GPUs, or None.
        reason: Doubts about the prediction, or the reason for none.
    """

    id: str
    predicted_s: float | None
    predicted_peak_gib: float | None
    fits: bool | None
    reason: str


def predict(row: PublishedRun | BadRow) -> Prediction:
    """Return the prediction of a row; an error becomes its reason."""
    if isinstance(row, BadRow):
        return Prediction(row.id, None, None, None, f"cannot be read: {row.reason}")
    try:
        return _predicted(row, setting_of(row))
    except ImpossibleLayoutError as error:
        return Prediction(row.id, None, None, False, f"fails: {error}")
    except Exception as error:  # noqa: BLE001 -- one row must not end the others
        return Prediction(row.id, None, None, None, f"cannot be predicted: {error}")


OUTSIDE_BYTES = 1573 * 2**20
"""Memory of a GPU that PyTorch's allocator does not see, on an A100: bigscience,
train/tr11-176B-ml/chronicles-prequel.md."""
FIT_SHARE = 1.04
"""Memory that a run needs to fit, over the bytes that it allocates; supposed, as blocks are split."""
RESERVED_SHARE = 1.1
"""Memory that PyTorch reserves, over the bytes that it allocates, as blocks are split; supposed."""


def _predicted(run: PublishedRun, setting: Setting) -> Prediction:
    trainer = setting.trainer
    estimated = estimate(setting)
    if trainer.second_settings and not _fits(estimated):
        estimated = estimate(replace(setting, sharding=replace(setting.sharding, **trainer.second_settings)))
    peaks = estimated.peak_bytes
    peak = {"fullest": max(peaks), "first": peaks[0], "last": peaks[-1]}[trainer.logging_rank]
    published_peak = {
        "allocated": peak,
        "reserved": RESERVED_SHARE * peak,
        "device": RESERVED_SHARE * peak + OUTSIDE_BYTES,
    }[trainer.meter]
    return Prediction(
        run.id, estimated.seconds, published_peak / GIB, _fits(estimated), "; ".join(doubts(run, setting))
    )


def _fits(estimated: IterationEstimate) -> bool:
    return FIT_SHARE * max(estimated.peak_bytes) + OUTSIDE_BYTES <= estimated.memory_bytes


def doubts(run: PublishedRun, setting: Setting) -> list[str]:
    """Return the doubts about a row: numbers that are supposed, and times that do not measure its setting."""
    reasons = []
    if time_trap(run):
        reasons.append(time_trap(run))
    if "host-bound" in run.note:
        reasons.append("the host binds its time")
    if setting.has_supposed_batch:
        reasons.append("the batch is not published, and supposed")
    if "recipe" in run.recompute:
        reasons.append("the recomputation of its recipe is not published, and supposed to be none")
    if run.heads is None:
        reasons.append("the heads are not published, and supposed")
    if run.n_gpus is None:
        reasons.append("the number of GPUs is not published, and supposed")
    return reasons


LAUNCH_BOUND_HIDDEN = 2048
"""Width below which Megatron-LM's CI measures the launches of kernels."""


def time_trap(run: PublishedRun) -> str:
    """Return the reason to leave the time of a row out of the statistics, or an empty text."""
    if "slow cluster" in run.note:
        return "its time lies in the slow cluster"
    if "launch-bound" in run.note or (run.id.startswith("mlmci-") and run.hidden < LAUNCH_BOUND_HIDDEN):
        return "its time is bound by launches of kernels"
    if "batch not printed" in run.note:
        return "its batch is not printed"
    return ""
