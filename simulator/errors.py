"""What goes wrong in a simulation, and in the reading of its results."""


class SimulationError(ValueError):
    """A simulation that cannot be run or never ends, or a timeline that cannot be read."""
