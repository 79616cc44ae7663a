"""The copies of weights that are held at every op: what the executor has, and what the lists say."""

from collections import Counter

import pytest

from pipesched.schedules.builders import build
from pipesched.schedules.ops import Step, computes
from pipesched.schedules.transforms import recompute
from pipesched.schedules.weights import uses
from tests.executor.models import plain
from tests.executor.pipelines import Calls, Local
from tests.executor.recurrences import SCHEMES, at_least


def brute_force(ops, stage):
    """Return, before every op of a list, which versions of `stage` it or a later one reads, or are the newest."""
    versions, version = [], 0
    for index, op in enumerate(ops):
        later = {part.version for after in ops[index:] for part in computes(after) if part.stage == stage}
        versions.append(tuple(sorted({v for v in later if v < version} | {version})))
        version += op == Step(stage)
    return versions


@pytest.mark.parametrize(
    ("name", "recomputes"),
    [*((name, False) for name in SCHEMES), *((name, True) for name in ("pipedream_2bw", "xpipe", "1f1b_rr"))],
)
def test_the_versions_held_are_those_that_will_still_be_read(name, recomputes):
    d = 4
    schedule = build(name, d, at_least(12, name, d))
    run = Local(recompute(schedule) if recomputes else schedule, plain(2 * d))
    lists, held = run.schedule.ops, {}

    def listen(rank, index):
        for stage, its in run.ranks[rank].stages.items():
            held[rank, stage, index] = its.weights.live_versions

    run.heard = Calls(listen)
    run.run()
    for rank, ops in enumerate(lists):
        for stage, its in run.ranks[rank].stages.items():
            expected = brute_force(ops, stage)
            assert [held[rank, stage, index] for index in range(len(ops))] == expected
            said = [use.held for use in uses(ops, in_order=False) if use.op.stage == stage]
            at_its_ops = [index for index, op in enumerate(ops) if any(p.stage == stage for p in computes(op))]
            assert said == [expected[index] for index in at_its_ops]
            steps = Counter(ops)[Step(stage)]
            assert its.weights.live_versions == (steps,)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("pipedream", [4, 3, 2, 1]),
        ("vanilla_1f1b", [1] * 4),
        ("stale_weights", [1] * 4),
        ("hybrid", [1] * 4),
        ("spectrain", [1] * 4),
        ("pipeoptim", [1] * 4),
        ("pipedream_2bw", [2] * 4),
        ("wpipe", [2] * 4 + [1] * 4),
    ],
)
def test_no_stage_holds_more_than_its_paper_says(name, most):
    run = Local(build(name, 4, 16), plain(8))
    seen = Counter()

    def listen(rank, index):
        for stage, its in run.ranks[rank].stages.items():
            seen[stage] = max(seen[stage], len(its.weights.live_versions))

    run.heard = Calls(listen)
    run.run()
    assert [seen[stage] for stage in range(len(most))] == most
