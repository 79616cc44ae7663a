"""The space of settings for tuning: schedules that train batch by batch, micro-batches that a profile covers."""

from __future__ import annotations

from collections.abc import Sequence

from pipesched.profiles.costs import Profile
from pipesched.simulator.search import divisors, nearest_batch
from pipesched.simulator.tuner import Problem
from pipesched.workflows import ArgumentError
from pipesched.workflows.arguments import NamedSchedule, require_one_step, searched_entries


def tunable_schedules(schedules: Sequence[NamedSchedule]) -> tuple[str, ...]:
    """Return the names, as a search knows them, of schedules that train batch by batch, each once.

    Raises:
        ArgumentError: There is none, or one steps without a flush.
        ScheduleError: A schedule does not exist.
    """
    entries = searched_entries(schedules, "['avgpipe', 'zb_h1']", require_one_step)
    for entry in entries:
        if entry.traits.is_asynchronous:
            raise ArgumentError(
                f"schedules: got {entry.name}, which steps without a flush, expected schedules that train batch by "
                "batch; try avgpipe,zb_h1"
            )
    return tuple(entry.searched_name for entry in entries)


def covered_microbatches(problem: Problem, asked: Sequence[int] | None) -> tuple[int, ...]:
    """Return the possible numbers of micro-batches: the given ones, or all that the profile covers.

    Raises:
        ArgumentError: The profile covers none, or not a given one; with the nearest that it covers.
    """
    size = problem.batch_size
    covered = [count for count in divisors(size) if problem.covers(count)]
    if not covered:
        raise ArgumentError(
            f"batch_size: got {size}, expected a multiple of a micro-batch that {_covered(problem.profile)}; "
            f"try {nearest_batch(problem.profile, size)}, or profile the model again with other sizes"
        )
    if asked is None:
        return tuple(covered)
    require_dividing(asked, size, covered)
    for count in asked:
        if count not in covered:
            raise ArgumentError(
                f"microbatches: got {count} in a batch of {size}, so {size // count} samples in each, expected a size "
                f"that {_covered(problem.profile)}; try `microbatches={_nearest(count, covered)}`"
            )
    return tuple(asked)


def require_dividing(asked: Sequence[int], batch_size: int, there: Sequence[int]) -> None:
    """Refuse numbers of micro-batches that do not divide the batch.

    Args:
        there: Valid numbers.

    Raises:
        ArgumentError: One does not divide it.
    """
    for count in asked:
        if count < 1 or batch_size % count:
            raise ArgumentError(
                f"microbatches: got {count}, expected what divides the batch of {batch_size}; "
                f"try `microbatches={_nearest(count, there)}`"
            )


def _nearest(wanted: int, there: Sequence[int]) -> str:
    return " or ".join(map(str, sorted(sorted(there, key=lambda count: abs(count - wanted))[:2])))


def _covered(profile: Profile) -> str:
    sizes = profile.microbatch_sizes
    return f"the profile covers, {sizes[0]} to {sizes[-1]}"
