"""Checks of arguments against a plan, which fixes partition, messages and training."""

from __future__ import annotations

from pipesched.profiles.io import Plan, costs_file_of, is_built_in
from pipesched.workflows import ArgumentError


def require_as_planned(plan: Plan, *, model: str | None = None, compression: object = None, **others: object) -> None:
    """Refuse arguments that contradict a plan or repeat a choice of the plan.

    Args:
        plan: The plan, which fixes partition, micro-batches, batches and messages.
        model: Name of the model that runs, or None without one.
        compression: Requested compression of messages; None: as planned.
        others: Arguments that the plan decides, by their names; None is an argument that is not given.

    Raises:
        ArgumentError: There is such an argument, or the model is another.
    """
    given = [f"`{name}`" for name, value in others.items() if value is not None]
    if given:
        raise ArgumentError(
            f"plan: got {' and '.join(given)} too, expected none: the plan says how its model runs; leave it out"
        )
    if compression not in (None, plan.compression):
        raise ArgumentError(
            f"plan: got `compression={compression}` too, expected none: the plan compresses nothing; leave it out"
        )
    if model is not None and not is_same_model(model, plan.model):
        raise ArgumentError(f"model: got {model}, expected {plan.model}, as the plan says; try that, or plan anew")


def is_same_model(model: str, planned: str) -> bool:
    """Return whether `model` is the planned model; a graph may have moved to another file."""
    if model == planned:
        return True
    if costs_file_of(planned) is not None:
        return costs_file_of(model) == costs_file_of(planned)
    if not is_built_in(planned):
        return False  # names are compared, without an import
    from pipesched.profiles.models import resolve_model

    return model == resolve_model(planned).name
