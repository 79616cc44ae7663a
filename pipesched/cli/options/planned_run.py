"""A plan in place of options: options must not repeat it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError

if TYPE_CHECKING:
    from pipesched.cli.options.cost_options import CostOptions
    from pipesched.cli.options.train_options import TrainOptions
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


def planned_training(
    plan: Plan,
    model: str | None,
    costs: CostOptions,
    options: TrainOptions,
    *,
    batch_size: int | None,
    compare: str | None,
    trusts: bool,
) -> tuple[str, CostOptions, TrainOptions]:
    """Return the model, costs and options of training as planned.

    Args:
        plan: The plan.
        model: The user's own model, if any.
        costs: Costs of the prediction.
        options: Options of the training.
        batch_size: The user's own samples per step, if any.
        compare: The user's own schedules, if any.
        trusts: Whether the plan may name code to import.

    Raises:
        ArgumentError: The options contradict the plan.
        ProfileError: The plan is not trusted.
    """
    from pipesched.workflows.arguments import partition_text, require_as_planned

    name = planned_model(plan, model, "MODEL", trusts=trusts)
    require_as_planned(
        plan, compression=options.compression, batch_size=batch_size, partition=costs.partition, compare=compare
    )
    chosen = replace(options, batch_size=plan.batch_size, compression=plan.compression)
    return name, replace(costs, partition=partition_text(plan.partition)), chosen
