"""The errors of simulations, and of reading their results."""


class SimulationError(ValueError):
    """A simulation that cannot be run or never ends, or a timeline that cannot be read."""
