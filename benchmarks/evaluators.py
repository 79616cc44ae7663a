"""How much quicker than the engine the other evaluators of time and memory are, each beside it on the same scenario.

python benchmarks/evaluators.py --out benchmarks/results/evaluators.md
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

from report import arguments_of, provenance, show

from pipesched import Link, StageCost, StageCosts, build, flat
from pipesched.schedules.builders import one_pipeline
from pipesched.schedules.lowering import lower
from pipesched.simulator import Estimate, EvaluateScenario, Scenario
from pipesched.simulator.engine import predict_by_events
from pipesched.simulator.fast import EqualPipelines, predict_drifting, predict_scenario

ROUNDS = 5
LINK = Link(0.01, 1e3)


def costs_of(num_stages: int, utilisation: float) -> StageCosts:
    """Return costs of equal stages that say seconds and bytes."""
    stage = StageCost(1.0, 2.0, output_bytes=10, saved_bytes=100, weight_bytes=1000, utilisation=utilisation)
    return StageCosts((stage,) * num_stages)


ONE = Scenario(lower(build("1f1b", 16, 256)), costs_of(16, 1.0), flat(16, LINK))
SEVERAL = Scenario(one_pipeline(8, 64, 4), costs_of(8, 0.3), flat(8, LINK), num_pipelines=4)
CROWDED = Scenario(one_pipeline(8, 64, 4), costs_of(8, 0.8), flat(8, LINK), num_pipelines=4)
KNOWN = EqualPipelines(SEVERAL.schedule, SEVERAL.costs, SEVERAL.cluster)


def predict_known(scenario: Scenario) -> Estimate:
    """Return the answer of lists that are compiled already."""
    return KNOWN.together(scenario.num_pipelines)


CASES: dict[str, tuple[str, EvaluateScenario, Scenario]] = {
    "array engine": ("1f1b, p = 16, m = 256", predict_scenario, ONE),
    "array engine, shared devices": ("4 pipelines, p = 8, m = 64, utilisation 0.3", predict_scenario, SEVERAL),
    "begun together, lists compiled": ("the same", predict_known, SEVERAL),
    "drifting": ("4 pipelines, p = 8, m = 64, utilisation 0.8", predict_drifting, CROWDED),
}


def took_s(evaluate: EvaluateScenario, scenario: Scenario) -> tuple[float, float]:
    """Return the seconds that the processor takes for one evaluation, and those that it predicts.

    Answers are let go of: the more of them there are, the longer the collector of garbage takes.
    """
    start = time.process_time()
    answer = evaluate(scenario)
    seconds = time.process_time() - start
    assert isinstance(answer, Estimate), answer
    return seconds, answer.seconds


def report(median: Callable[[list[float]], float] = statistics.median) -> Iterator[str]:
    """Yield the page; the engine and the other take turns, so that both meet the same machine."""
    yield "# Evaluators beside the engine"
    yield ""
    yield from provenance("evaluators.py", os.getloadavg()[0], f"processor time, medians of {ROUNDS} turns")
    yield ""
    yield "| evaluator | scenario | engine [s] | evaluator [s] | times as quick | spread | predicted / engine's |"
    yield "|---|---|---|---|---|---|---|"
    for name, (what, evaluate, scenario) in CASES.items():
        took_s(evaluate, scenario)  # machine code is loaded, or made
        turns = [(took_s(predict_by_events, scenario), took_s(evaluate, scenario)) for _ in range(ROUNDS)]
        engine_s, other_s = ([turn[index][0] for turn in turns] for index in (0, 1))
        ratios = [engine / other for engine, other in zip(engine_s, other_s, strict=True)]
        (_, engine_says), (_, other_says) = turns[0]
        yield (
            f"| {name} | {what} | {median(engine_s):.3f} | {median(other_s):.4f} | {median(ratios):.3g} "
            f"| {min(ratios):.3g} to {max(ratios):.3g} | {other_says / engine_says:.3f} |"
        )
    yield ""
    yield "The drifting evaluator says the pace of the long run, the engine one iteration; the others are exact."


if __name__ == "__main__":
    arguments = arguments_of(__doc__).parse_args()
    show(report(), arguments.out)
