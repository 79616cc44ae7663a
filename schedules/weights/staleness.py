"""The staleness of a run of any length: the age of the weights that each stage reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.ops import ENDS_MICROBATCH, Phase
from pipesched.schedules.weights.versions import Agreement, Use, looks_ahead, uses

Uses: TypeAlias = dict[tuple[int, int], Use]
"""The uses of weights by (stage, micro-batch)."""

_TELL_EVERY = 50_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The weights that one direction of a stage reads, over all its micro-batches.

    Attributes:
        staleness: Most steps from the weights that an op reads to the weights that its gradient changes.
        lookahead: Most predicted steps.
        lag: Most steps left after prediction, or None without predictions. Before the stage's first Step, ops cannot
            predict and do not count.
    """

    staleness: int
    lookahead: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class StageStaleness:
    """The staleness of one stage in a run.

    Attributes:
        ranks: The ranks that hold the stage.
        forward: The weights that F reads.
        backward: The weights that all other phases read.
        same: Micro-batches whose F and backward read the same weights.
        predicted: Micro-batches whose F and backward read one version, at least one of them by a prediction.
        different: Micro-batches whose F and backward read different versions.
        live_versions: Most versions on a rank at once, with the newest.
        live_copies: Most copies of the weights on a rank at once: versions, and a predicted copy.
        predicts: Whether an op reads a predicted copy, which exists while the op runs.
        in_flight: Most micro-batches on a rank between F and the end of the backward.
    """

    stage: int
    ranks: tuple[int, ...]
    forward: Reading
    backward: Reading
    same: int
    predicted: int
    different: int
    live_versions: int
    live_copies: int
    predicts: bool
    in_flight: int

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of the run with a backward on this stage."""
        return self.same + self.predicted + self.different


@dataclass(frozen=True, slots=True)
class Staleness:
    """The staleness of each stage, and the most (stage, micro-batch) pairs in flight at once on each rank."""

    stages: tuple[StageStaleness, ...]
    in_flight: tuple[int, ...]

    def stale_share(self, weights: Sequence[float]) -> float:
        """Return the share of weights that some forward reads stale, for `weights` in each stage.

        Source: arXiv:1912.12675, section 4.1: the weights before the last pair of pipeline registers, over all
            weights.

        Raises:
            ScheduleError: The numbers are not one for each stage, or none is above 0.
        """
        if len(weights) != len(self.stages) or min(weights) < 0 or sum(weights) <= 0:
            raise ScheduleError(
                f"weights: got {', '.join(map(str, weights)) or 'none'}, expected {len(self.stages)} numbers of 0 or "
                f"more, one per stage and not all 0; try {','.join('1' for _ in self.stages)}"
            )
        stale = (size for size, stage in zip(weights, self.stages, strict=True) if stage.forward.staleness > 0)
        return sum(stale) / sum(weights)


def staleness(schedule: Schedule, tell: Callable[[float], None] | None = None) -> Staleness:
    """Return the staleness, versions and micro-batches in flight of the op lists of `schedule`.

    Args:
        tell: Callback for progress, which receives the share of the lists that has been read.

    Raises:
        ScheduleError: No rank computes a stage, or an op reads a missing version.
    """
    kinds: list[set[_Kind]] = []
    counts: Counter[tuple[int, Agreement | None]] = Counter()
    for rank in range(schedule.num_ranks):
        seen: Counter[_Kind] = Counter()
        for number, use in enumerate(rank_uses(schedule, rank)):
            seen[_kind(use)] += 1
            if tell is not None and number % _TELL_EVERY == 0:
                tell((rank + use.op.microbatch / schedule.num_microbatches) / schedule.num_ranks)
        kinds.append(set(seen))
        for kind, count in seen.items():
            counts[kind.stage, kind.agreement] += count if kind.is_forward else 0
    stages = tuple(_stage(stage, kinds, counts) for stage in range(schedule.num_stages))
    return Staleness(stages, tuple(max((kind.on_rank for kind in kinds_of_rank), default=0) for kinds_of_rank in kinds))


def rank_uses(schedule: Schedule, rank: int) -> Iterator[Use]:
    """Yield every use of weights on `rank`; a generated list is read op by op."""
    return uses(schedule.lists[rank], in_order=not schedule.is_held)


def first_uses(schedule: Schedule, count: int) -> tuple[Uses, Uses]:
    """Return the F and the last backward of each (stage, micro-batch), for the first `count` micro-batches."""
    forwards: Uses = {}
    backwards: Uses = {}
    for rank in range(schedule.num_ranks):
        left = _num_on(schedule, rank, count)
        for use in rank_uses(schedule, rank) if left else ():
            if use.op.microbatch >= count:
                continue
            place = (use.op.stage, use.op.microbatch)
            if use.op.phase is Phase.FORWARD:
                forwards[place] = use
            elif use.op.phase in ENDS_MICROBATCH:
                backwards[place] = use
                left -= 1
                if not left:
                    break
    return forwards, backwards


def _num_on(schedule: Schedule, rank: int, count: int) -> int:
    """Return an upper bound of the (stage, micro-batch) pairs on `rank` among the first `count` micro-batches."""
    places = [(stage, i) for stage in range(schedule.num_stages) for i in range(count)]
    return sum(schedule.home(*place) == rank for place in places)


class _Kind(NamedTuple):
    """The common properties of similar uses: a run of any length has few kinds of uses."""

    stage: int
    is_forward: bool
    staleness: int
    lookahead: int
    lag: int | None
    agreement: Agreement | None
    live: int
    copies: int
    in_flight: int
    on_rank: int
    predicts: bool


def _kind(use: Use) -> _Kind:
    op = use.op
    return _Kind(
        op.stage,
        op.phase is Phase.FORWARD,
        use.staleness or 0,
        op.lookahead,
        use.lag if op.version or not op.lookahead else None,
        use.agreement,
        len(use.held),
        use.copies,
        use.in_flight,
        use.on_rank,
        looks_ahead(op),
    )


def _stage(stage: int, kinds: Sequence[set[_Kind]], counts: Counter[tuple[int, Agreement | None]]) -> StageStaleness:
    ranks = tuple(rank for rank, seen in enumerate(kinds) if any(kind.stage == stage for kind in seen))
    kinds_of_stage = [kind for rank in ranks for kind in kinds[rank] if kind.stage == stage]
    if not kinds_of_stage:
        raise ScheduleError(f"stage {stage}: got no op, expected ops of every stage; check the schedule")
    return StageStaleness(
        stage=stage,
        ranks=ranks,
        forward=_reading(kind for kind in kinds_of_stage if kind.is_forward),
        backward=_reading(kind for kind in kinds_of_stage if not kind.is_forward),
        same=counts[stage, Agreement.SAME],
        predicted=counts[stage, Agreement.PREDICTED],
        different=counts[stage, Agreement.DIFFERENT],
        live_versions=max(kind.live for kind in kinds_of_stage),
        live_copies=max(kind.copies for kind in kinds_of_stage),
        predicts=any(kind.predicts for kind in kinds_of_stage),
        in_flight=max(kind.in_flight for kind in kinds_of_stage),
    )


def _reading(kinds: Iterable[_Kind]) -> Reading:
    known = list(kinds)
    return Reading(
        staleness=max((kind.staleness for kind in known), default=0),
        lookahead=max((kind.lookahead for kind in known), default=0),
        lag=max((kind.lag for kind in known if kind.lag is not None), default=None),
    )
