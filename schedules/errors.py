"""The errors of schedules."""


class ScheduleError(ValueError):
    """A schedule, or a file of one, is invalid."""


class NotRunnableError(ScheduleError):
    """The op lists of a schedule cannot run to their end, as `schedules.check.checker` finds."""
