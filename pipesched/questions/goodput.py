"""The question of the goodput of a training under failures."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from pipesched.schedules.common import MAX_NUMBER, Description


@dataclass(frozen=True, slots=True)
class GoodputQuestion:
    """The question of `goodput`; its fields are the arguments of that function."""

    step_s: Annotated[
        float, Description("Seconds of a step, above 0, as the `step_s` of a `simulate` result.", least=0.0)
    ]
    num_steps: Annotated[int, Description("Steps of the training.", least=1, most=10**9)]
    _: KW_ONLY
    fail_every_s: Annotated[
        float,
        Description(
            "Mean time between failures [s], above 0, for the whole job, or for each of `num_devices`.", least=0.0
        ),
    ]
    restart_s: Annotated[
        float,
        Description("Time from a failure to the first step after the failure [s].", least=0.0, more="Or as 120s."),
    ]
    checkpoint_s: Annotated[
        float, Description("Time that a checkpoint blocks the training [s].", least=0.0, more="Or as 20s.")
    ]
    num_devices: Annotated[
        int,
        Description(
            "Number of devices that fail independently, all needed by the job; 1: `fail_every_s` is for the whole job.",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = 1
    checkpoint_every: Annotated[
        int | None,
        Description("Number of steps between two checkpoints, to compare with the best interval.", least=1),
    ] = None
    draws: Annotated[
        int, Description("Number of simulated runs per interval, for the spread.", least=2, most=100_000)
    ] = 1000
    seed: Annotated[int, Description("Seed of the failures.", least=0, most=2**63 - 1)] = 0
