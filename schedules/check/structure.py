"""Check that the op lists are complete, and that each op has a valid place.

Every stage runs F and B (or I and W) once for every micro-batch, all on the rank of F; an optional R is between F and
the backward. An op reads weights of a version that exists when the op runs. Unshard and Reshard may stand anywhere. A B
before its F, or a W before its I, waits forever: `semantics.progress` finds it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from pipesched.schedules import Schedule
from pipesched.schedules.check.finding import Finding
from pipesched.schedules.ops import Phase, Step, computes

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
                    yield Finding("structure", rank, index, f"{part} is there twice, first at {where}")
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
            f"{stage}B{microbatch} is there beside I or W, expected one of them",
        )
    for phase, (rank, index) in seen.items():
        if home is not None and rank != home[0]:
            yield Finding(
                "structure", rank, index,
                f"{stage}{phase}{microbatch} is here, expected on rank {home[0]} where its forward is",
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
