"""The settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pipesched.executor import FaultSettings, LearningSettings, RunSettings
from pipesched.schedules.common import MAX_NUMBER, Description

OF_PROCESSES = ("transport", "has_green_contexts", "backend", "timeout_s", "is_pinned", "save")
"""Settings of a run that have an effect only where every rank has a process of its own, or a stream of a GPU."""
OF_STREAMS = ("has_green_contexts", "timeout_s")
"""Some of them, which have an effect on streams of GPUs too."""
_MOST = 2**31 - 1
"""Most samples of a step, steps between two checkpoints, and kept checkpoints."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(RunSettings, FaultSettings, LearningSettings):
    """The settings of a training run."""

    panel: ClassVar[str] = "Run"

    batch_size: Annotated[
        int | None,
        Description(
            "Samples per optimizer step; with avgpipe, per step of each pipeline (default: 64, or as in the plan).",
            least=1,
            most=_MOST,
        ),
    ] = None
    num_steps: Annotated[int, Description("Optimizer steps.", least=1, most=10**9)] = 100
    is_distributed: Annotated[
        bool, Description("Start one process per rank, instead of all ranks in this process.")
    ] = False
    advance: Annotated[
        Literal["auto"] | None,
        Description(
            "Search for the best advance of the forwards: auto raises it while a batch gets faster and the memory "
            "limit allows."
        ),
    ] = None
    checkpoint: Annotated[str | Path | None, Description("Folder for regular checkpoints.", metavar="FOLDER")] = None
    every: Annotated[
        int | None,
        Description(
            "Steps from one checkpoint to the next (default: 100, or as before). A schedule without a flush is drained "
            "and refilled at each checkpoint, so its losses depend on this interval.",
            least=1,
            most=_MOST,
        ),
    ] = None
    keep: Annotated[
        int | None,
        Description("Number of the newest checkpoints to keep (default: 3, or as before).", least=1, most=_MOST),
    ] = None
    resume: Annotated[
        str | Path | None,
        Description(
            "Checkpoint to continue from, or a folder, to continue from its newest checkpoint.", metavar="FOLDER"
        ),
    ] = None
    restarts: Annotated[
        int,
        Description(
            "Largest number of restarts from the newest checkpoint after a rank fails.", least=0, most=MAX_NUMBER
        ),
    ] = 0
    limit_bytes: Annotated[
        int | None,
        Description(
            "Bytes that a device may hold while forwards run ahead.", least=1, most=2**63 - 1, has_option=False
        ),
    ] = None
    held_out_every: Annotated[
        int | None,
        Description(
            "Steps between two evaluations on held-out samples, if all ranks are in this process (default: 10 with "
            "`target_accuracy`, else one evaluation, of the final weights).",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None
    target_accuracy: Annotated[
        float | None, Description("Held-out accuracy at which the run ends, from 0 to 1.", least=0.0, most=1.0)
    ] = None
    export: Annotated[
        str | Path | None,
        Description("Write the final weights of the whole model, as one state dict: .safetensors.", panel="Output"),
    ] = None
