"""The domain of a closed form: arguments for which it was not derived are refused."""

from __future__ import annotations

from pipesched.simulator import SimulationError


def require(holds: bool, fault: str) -> None:
    """Refuse arguments for which a form was not derived.

    Raises:
        SimulationError: With `fault`, where it does not hold.
    """
    if not holds:
        raise SimulationError(fault)
