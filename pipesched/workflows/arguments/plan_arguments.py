"""What a plan leaves no room for, as it says how its model is cut, sent and trained."""

from __future__ import annotations

from pipesched.profiles.io import Plan, costs_file_of, is_built_in
from pipesched.workflows import ArgumentError


def require_as_planned(plan: Plan, *, model: str | None = None, compression: object = None, **others: object) -> None:
    """Refuse what contradicts a plan, and what it says by itself.

    Args:
        plan: Says how its model is cut, in which micro-batches and batches it goes, and how its messages do.
        model: Name of the model that is run; None: nothing is.
        compression: Compression of messages that is asked for; None: as planned.
        others: Arguments that the plan leaves no room for, by their names; None stands for none.

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
    """Return whether `model` is the one that was planned; a graph is, wherever its file now is."""
    if model == planned:
        return True
    if costs_file_of(planned) is not None:
        return costs_file_of(model) == costs_file_of(planned)
    if not is_built_in(planned):
        return False  # names are compared, not what they would import
    from pipesched.profiles.models import resolve_model

    return model == resolve_model(planned).name
