"""The steady-state time of a searched setting, by longer runs of its op lists if these are short."""

from __future__ import annotations

from collections.abc import Callable

from pipesched.schedules import Schedule
from pipesched.simulator import Inexact, Scenario, SteadyPace, fast
from pipesched.simulator.search.search_outcome import UNPREDICTABLE


def settled_pace(
    make: Callable[[], Scenario], num_cells: int, most_cells: int, longer: Callable[[int], Schedule] | None = None
) -> SteadyPace | Inexact:
    """Return the steady-state time per micro-batch of a setting, or the reason why it is unknown.

    Args:
        make: Returns the scenario of the setting.
        num_cells: Stages times micro-batches of its op lists, of all pipelines or copies.
        most_cells: Most cells of lists that are tried.
        longer: Makes a run without a flush a number of times as long; None for a batch.
    """
    if num_cells > most_cells:
        return Inexact(f"lists of more than {most_cells:,} stages x micro-batches are not tried")
    try:
        return fast.steady_pace(make(), longer=longer)
    except UNPREDICTABLE as error:
        return Inexact(str(error))
