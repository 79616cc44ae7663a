"""The pace in the long run is the largest cycle mean of the graph of what waits for what, made and solved here."""

import random
from fractions import Fraction

import pytest

import pipesched
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import repeat
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.ops import Compute, Phase

DELAY_S = Fraction(1, 4)
"""How long messages take."""


def computes(schedule):
    return [[op for op in row if isinstance(op, Compute)] for row in schedule.ops]


def what_it_waits_for(op, num_stages):
    """Return (phase, stage) of the op of the same micro-batch that comes first: down the stages and back."""
    if op.phase is Phase.FORWARD:
        return (Phase.FORWARD, op.stage - 1) if op.stage else None
    if op.phase is Phase.BACKWARD_WEIGHT:
        return Phase.BACKWARD_INPUT, op.stage
    return (op.phase, op.stage + 1) if op.stage < num_stages - 1 else (Phase.FORWARD, op.stage)


def graph(rows, size, num_stages, seconds):
    """Return the edges (from, to, seconds, periods later) between the ops of a period, of so many micro-batches.

    The middle of every list is the same op by op, `size` micro-batches later, which is looked at first.
    """
    nodes, edges = {}, []  # by rank and place; by phase, stage and which of the period the node and its micro-batch
    for rank, row in enumerate(rows):
        middle, length = len(row) // 2, sum(op.microbatch < size for op in row)
        period, after = row[middle : middle + length], row[middle + length : middle + 2 * length]
        assert [(op.phase, op.stage, op.microbatch + size) for op in period] == [
            (op.phase, op.stage, op.microbatch) for op in after
        ]
        for place, op in enumerate(period):
            nodes[op.phase, op.stage, op.microbatch % size] = (rank, place), op
            edges.append(((rank, place), (rank, (place + 1) % length), seconds[op], int(place + 1 == length)))
    for node, op in nodes.values():
        before = what_it_waits_for(op, num_stages)
        if before is not None:
            source, maker = nodes[*before, op.microbatch % size]
            delay_s = DELAY_S if source[0] != node[0] else 0
            edges.append((source, node, seconds[maker] + delay_s, (maker.microbatch - op.microbatch) // size))
    return edges


def largest_cycle_mean(edges):
    """Return the most seconds for each period on a cycle: as long as one is above the mean so far, it is taken."""
    mean, nodes = Fraction(0), {end for edge in edges for end in edge[:2]}
    while True:
        longest, last = dict.fromkeys(nodes, Fraction(0)), {}
        for _ in nodes:
            moved = None
            for source, target, length_s, periods in edges:
                way_s = longest[source] + length_s - mean * periods
                if way_s > longest[target]:
                    longest[target], last[target], moved = way_s, (source, length_s, periods), target
            if moved is None:
                return mean
        for _ in nodes:  # back onto the cycle
            moved = last[moved][0]
        at, total_s, total = moved, Fraction(0), 0
        while total_s == 0 or at != moved:
            at, length_s, periods = last[at]
            total_s, total = total_s + length_s, total + periods
        mean = total_s / total


@pytest.mark.parametrize(
    ("name", "p", "m"),
    [
        ("gpipe", 3, 4),
        ("1f1b", 4, 6),
        ("interleaved", 2, 4),
        ("zb_h1", 3, 5),
        ("zb_h2", 4, 8),
        ("zbv", 3, 6),
        ("v_min", 3, 6),
        ("hanayo", 2, 4),
        ("pipedream", 4, 8),
        ("vanilla_1f1b", 3, 8),
        ("pipedream_2bw", 3, 6),
        ("wpipe", 2, 8),
        ("xpipe", 3, 6),
    ],
)
def test_the_steady_time_is_the_largest_cycle_mean(name, p, m):
    draw = random.Random(p * m)
    schedule = build(name, p, m)
    parts = ((Fraction(draw.randint(4, 16), 8) for _ in "FIW") for _ in range(schedule.num_stages))
    stages = [{"F": f, "I": i, "W": w, "B": i + w} for f, i, w in parts]
    costs = StageCosts(tuple(StageCost(*map(float, (s["F"], s["B"], s["I"], s["W"]))) for s in stages))
    is_unflushed = CATALOGUE[name].traits.is_asynchronous
    rows = computes(build(name, p, 12 * m) if is_unflushed else repeat(schedule, 4))
    seconds = {op: stages[op.stage][op.phase.value] for row in rows for op in row}
    edges = graph(rows, m, schedule.num_stages, seconds)
    told = pipesched.simulate(
        pipesched.build(name, p, m), pipesched.Setup(costs, flat(p, Link(float(DELAY_S))))
    ).to_dict()
    period_s = largest_cycle_mean(edges)
    assert told["steady_s_per_microbatch"] == pytest.approx(float(period_s / m), rel=1e-12)
    busy_s = m * sum(stage["F"] + stage["B"] for stage in stages)
    assert told["steady_bubble_fraction"] == pytest.approx(float(1 - busy_s / (p * period_s)), abs=1e-12)
