"""A plan in place of options: what it says need not be said, and must not be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError

if TYPE_CHECKING:
    from pipesched.cli.options.cost_options import CostOptions
    from pipesched.cli.options.train_options import TrainOptions
    from pipesched.profiles.io import Plan


def planned_model(plan: Plan, model: str | None, option: str, *, trusts: bool) -> str:
    """Return the name of the model that is built and run.

    Args:
        plan: Names it.
        model: The name that the user gave too, if any.
        option: The option that says the model.
        trusts: Whether the plan may name what is imported; what the user named may be in any case.

    Raises:
        InputError: There is none behind a graph, or the user named another.
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
        plan: What is trained.
        model: The model that the user gave too.
        costs: How its time is predicted.
        options: How it is trained.
        batch_size: Samples of a step that the user gave too.
        compare: Schedules that the user gave too.
        trusts: Whether the plan may name what is imported.

    Raises:
        ArgumentError: They contradict the plan.
        ProfileError: The plan is not trusted.
    """
    from pipesched.workflows.arguments import partition_text, require_as_planned

    name = planned_model(plan, model, "MODEL", trusts=trusts)
    require_as_planned(
        plan, compression=options.compression, batch_size=batch_size, partition=costs.partition, compare=compare
    )
    chosen = replace(options, batch_size=plan.batch_size, compression=plan.compression)
    return name, replace(costs, partition=partition_text(plan.partition)), chosen
