"""Which schedules of the catalogue PyTorch's CSV can say."""

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.formats import write_csv


def halves(num_ranks, num_microbatches):
    """Build every schedule of the catalogue; return (those that a CSV can say, {name: why not} of the others)."""
    can, cannot = {}, {}
    for name in CATALOGUE:
        schedule = build(name, num_ranks, num_microbatches)
        try:
            write_csv(schedule)
            can[name] = schedule
        except ScheduleError as error:
            cannot[name] = str(error)
    return can, cannot
