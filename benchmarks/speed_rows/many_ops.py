"""Time lists of many ops in a separate process: built, lowered, compiled and run as columns, without a Timeline.

    python benchmarks/speed_rows/many_ops.py

The makespan is compared with the closed form of interleaved 1F1B with free links: (v m + p - 1) (F + B).
"""

from __future__ import annotations

import sys
import time

from pipesched import flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.lowering import lower
from pipesched.simulator import USUAL_NETWORK
from pipesched.simulator.fast import LoadedProgram, compile_lists

P, M, V = 512, 4096, 4


def main() -> int:
    def tell(what: str) -> None:
        print(f"{time.process_time():6.2f} s of the processor: {what}", flush=True)

    schedule = lower(CATALOGUE["interleaved"].build(P, M, num_chunks=V))
    tell("built and lowered")
    program = compile_lists(schedule, USUAL_NETWORK, has_hand_over=False)
    tell(f"{len(program.kinds)} instructions compiled")
    times_s = LoadedProgram(program, StageCosts((StageCost(1.0, 2.0),) * (P * V)), flat(P)).times()
    tell("times known")
    makespan_s = program.makespan_s(times_s)
    tell(f"makespan {makespan_s:g} s")
    return 0 if makespan_s == (V * M + P - 1) * 3 else 1


if __name__ == "__main__":
    sys.exit(main())
