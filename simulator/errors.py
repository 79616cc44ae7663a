"""The errors of simulations, and of reading their results."""

from pipesched.schedules.common import OneLineError


class SimulationError(OneLineError):
    """A simulation that cannot be run or never ends, or a timeline that cannot be read."""
