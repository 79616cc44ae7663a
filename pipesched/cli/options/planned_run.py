"""A plan in place of options: options must not repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError

if TYPE_CHECKING:
    from pipesched.profiles.io import Plan


def planned_model(plan: Plan, model: str | None, option: str, *, trusts: bool) -> str:
    """Return the name of the model to build and run.

    Args:
        plan: The plan with the name.
        model: The user's own name for the model, if any.
        option: The option for the model.
        trusts: Whether the plan may name code to import; the user's own name always may.

    Raises:
        InputError: The plan is of a graph without a model, or the user named another model.
        ProfileError: The plan is not trusted.
    """
    from pipesched.profiles.io import costs_file_of, require_trusted, trusted
    from pipesched.workflows.arguments import is_same_model

    if model is not None and not is_same_model(model, plan.model):
        raise InputError(f"--plan: got {option} {model} too, expected none: the plan says {plan.model}; leave it out")
    if costs_file_of(plan.model) is not None:
        raise InputError(
            f"--plan: got a plan of {plan.model}, expected one of a model: of its layers only costs are known; "
            "emulate them with 'pipesched run --plan ..' and --profile or --layer-costs"
        )
    name = trusted(plan.model) if trusts or model is not None else plan.model
    require_trusted(name)
    return name
