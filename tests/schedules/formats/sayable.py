"""Which schedules of the catalogue PyTorch's CSV can say."""

from pipesched.schedules.catalogue import CATALOGUE, build
from pipesched.schedules.formats.torch_csv import write_csv
from pipesched.schedules.schedule import ScheduleError


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
