"""Check that the op lists are complete, and that each op has a valid place.

Every stage runs F and B (or I and W) once for every micro-batch, all on the rank of F; an optional R is between F and
the backward. An op reads weights of a version that exists when the op runs. A stage with an Unshard or a Reshard
alternates between the two, as PyTorch's runtime requires. A B before its F, or a W before its I, waits forever:
`semantics.progress` finds it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from pipesched.schedules import Schedule
from pipesched.schedules.check.finding import Finding
from pipesched.schedules.ops import Op, Phase, Reshard, Step, Unshard, computes, stages_of, stages_of_op

_Seen = dict[Phase, tuple[int, int]]
"""The first place, (rank, index), of each phase of one (stage, microbatch)."""


def structure(schedule: Schedule) -> Iterator[Finding]:
    """Yield ops that are missing, duplicate, or at an invalid place."""
    if len(schedule.rank_to_device) != schedule.num_ranks:
        yield Finding(
            "structure", None, None,
            f"rank_to_device has {len(schedule.rank_to_device)} entries, expected one for each of "
            f"{schedule.num_ranks} ranks",
        )  # fmt: skip
    places: defaultdict[tuple[int, int], _Seen] = defaultdict(dict)
    for rank, row in enumerate(schedule.ops):
        for index, op in enumerate(row):
            for part in computes(op):
                if not 0 <= part.stage < schedule.num_stages or not 0 <= part.microbatch < schedule.num_microbatches:
                    yield Finding(
                        "structure", rank, index,
                        f"{part} is outside of {schedule.num_stages} stages and "
                        f"{schedule.num_microbatches} micro-batches",
                    )  # fmt: skip
                    continue
                seen = places[part.stage, part.microbatch]
                if part.phase in seen:
                    where = "rank {} op {}".format(*seen[part.phase])
                    yield Finding("structure", rank, index, f"{part} appears twice, first at {where}")
                seen.setdefault(part.phase, (rank, index))
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            yield from _complete(stage, microbatch, places.get((stage, microbatch), {}))


def _complete(stage: int, microbatch: int, seen: _Seen) -> Iterator[Finding]:
    """Yield faults of one stage's ops on one micro-batch: F, then B or I and W."""
    split = {Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT}
    expected = {Phase.FORWARD} | (split if split & seen.keys() else {Phase.BACKWARD})
    home = seen.get(Phase.FORWARD)
    for phase in sorted(expected - seen.keys()):
        yield Finding("structure", None if home is None else home[0], None, f"{stage}{phase}{microbatch} is missing")
    if split & seen.keys() and Phase.BACKWARD in seen:
        yield Finding(
            "structure",
            *seen[Phase.BACKWARD],
            f"{stage}B{microbatch} appears beside I or W, expected either B, or I and W",
        )
    for phase, (rank, index) in seen.items():
        if home is not None and rank != home[0]:
            yield Finding(
                "structure", rank, index,
                f"{stage}{phase}{microbatch} is on this rank, expected on rank {home[0]}, the rank of its forward",
            )  # fmt: skip
    if Phase.RECOMPUTE in seen:
        user = seen.get(Phase.BACKWARD, seen.get(Phase.BACKWARD_INPUT))
        if user is not None and user[0] == seen[Phase.RECOMPUTE][0] and user[1] < seen[Phase.RECOMPUTE][1]:
            yield Finding("structure", *seen[Phase.RECOMPUTE], f"{stage}R{microbatch} comes after its backward")


def unreached_versions(schedule: Schedule) -> Iterator[Finding]:
    """Yield the ops that read a version before the Step that makes it."""
    for rank, row in enumerate(schedule.ops):
        steps: Counter[int] = Counter()
        for index, op in enumerate(row):
            if isinstance(op, Step):
                steps[op.stage] += 1
            for part in computes(op):
                if not 0 <= part.version <= steps[part.stage]:
                    yield Finding(
                        "version", rank, index,
                        f"{part} reads version {part.version}, but {steps[part.stage]} steps of stage "
                        f"{part.stage} come before it",
                    )  # fmt: skip


def misplaced_gathers(schedule: Schedule) -> Iterator[Finding]:
    """Yield the first op of each rank and stage that finds the weights gathered or sharded at a wrong time.

    The weights of a stage with an Unshard on its rank are sharded at first; other stages are never sharded.
    """
    for rank, row in enumerate(schedule.ops):
        sharded = {op.stage for op in row if isinstance(op, Unshard | Reshard)}.intersection(stages_of(row))
        ops_of_stage: dict[int, list[tuple[int, Op]]] = {stage: [] for stage in sorted(sharded)}
        for index, op in enumerate(row):
            for stage in sharded.intersection(stages_of_op(op)):
                ops_of_stage[stage].append((index, op))
        for stage, ops in ops_of_stage.items():
            yield from _misplaced_gather(rank, stage, ops)


def _misplaced_gather(rank: int, stage: int, ops: Sequence[tuple[int, Op]]) -> Iterator[Finding]:
    """Yield the first fault in the cycle Unshard, computations, Reshard of one stage, if any."""
    unshard, reshard = Unshard(stage), Reshard(stage)
    has_unshards = any(op == unshard for _, op in ops)
    is_gathered = is_used = False
    for index, op in ops:
        fault = None
        if op == unshard:
            fault = f"comes again without {reshard} between: the weights are gathered already" if is_gathered else None
            is_gathered, is_used = True, False
        elif op == reshard:
            fault = None if is_used else f"comes without {unshard} and a computation of the stage before it"
            is_gathered = is_used = False
        elif computes(op) and has_unshards:
            fault = None if is_gathered else f"comes without {unshard} before it: the weights are sharded"
            is_used = True
        if fault is not None:
            yield Finding("structure", rank, index, f"{op} {fault}")
            return
    if is_gathered and not is_used:
        yield Finding("structure", rank, None, f"the last {unshard} comes without a computation of the stage after it")
