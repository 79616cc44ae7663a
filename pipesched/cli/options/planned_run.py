"""A plan in place of options: what it says need not be said, and must not be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError

if TYPE_CHECKING:
    from pipesched.cli.options.cost_options import CostOptions
    from pipesched.cli.options.run_options import RunOptions
    from pipesched.cli.options.train_options import TrainOptions
    from pipesched.profiles import MessagePrecision
    from pipesched.profiles.io import Plan


def _costs(plan: Plan, costs: CostOptions) -> CostOptions:
    """Return `costs` cut as planned.

    Raises:
        InputError: They say how to cut, too, or are of another model.
        ProfileError: The file is no profile.
    """
    if costs.partition is not None or costs.microbatch_size is not None:
        raise InputError(
            "--plan: got --partition or --microbatch-size too, expected neither: the plan says them; leave them out"
        )
    if costs.profile is None:
        return costs
    from pipesched.profiles.io import load_profile
    from pipesched.workflows.simulating import is_same_model

    model = load_profile(costs.profile).model
    if not is_same_model(model, plan.model):
        raise InputError(
            f"{costs.profile}: got a profile of {model}, expected one of {plan.model}, as the plan says; "
            "give the profile that the plan was made from"
        )
    return replace(costs, partition=_layers(plan), microbatch_size=plan.microbatch_size)


def _model_of(plan: Plan, model: str | None, option: str, trusts: bool) -> str:
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
    from pipesched.profiles.io import graph_of, require_trusted, trusted

    if model is not None and model != plan.model:
        raise InputError(f"--plan: got {option} {model} too, expected none: the plan says {plan.model}; leave it out")
    if graph_of(plan.model) is not None:
        raise InputError(
            f"--plan: got a plan of {plan.model}, expected one of a model: a graph has only its costs; "
            "emulate it with 'pipesched run --plan .. --profile' and the graph"
        )
    name = trusted(plan.model) if trusts or model is not None else plan.model
    require_trusted(name)
    return name


def planned_run(
    plan: Plan, model: str | None, costs: CostOptions, options: RunOptions, *, trusts: bool
) -> tuple[str | None, CostOptions, RunOptions]:
    """Return the model, costs and options of a run: of the plan's model, or with costs of their emulation.

    Args:
        plan: What is run.
        model: The model that the user gave too.
        costs: Costs to emulate, if they have a source.
        options: How it is run.
        trusts: Whether the plan may name what is imported.

    Raises:
        InputError: They contradict the plan.
        ProfileError: The profile is bad, or the plan is not trusted.
    """
    chosen = replace(options, compression=_compression(plan, options.compression))
    cut_costs = _costs(plan, costs)
    if model is None and any(source is not None for source in (costs.profile, costs.stage_costs, costs.uniform)):
        return None, cut_costs, chosen
    name = _model_of(plan, model, "--model", trusts)
    return name, replace(cut_costs, partition=_layers(plan), microbatch_size=plan.microbatch_size), chosen


def planned_training(
    plan: Plan,
    model: str | None,
    given: Mapping[str, bool],
    costs: CostOptions,
    options: TrainOptions,
    *,
    trusts: bool,
) -> tuple[str, CostOptions, TrainOptions]:
    """Return the model, costs and options of training as planned.

    Args:
        plan: What is trained.
        model: The model that the user gave too.
        given: Whether the options are there that the plan leaves no room for.
        costs: How its time is predicted.
        options: How it is trained.
        trusts: Whether the plan may name what is imported.

    Raises:
        InputError: They contradict the plan.
        ProfileError: The plan is not trusted.
    """
    name = _model_of(plan, model, "MODEL", trusts)
    named = [name for name, is_there in given.items() if is_there]
    if named or costs.partition is not None:
        raise InputError(
            f"--plan: got {', '.join(named) or '--partition'} too, expected none: the plan says it; leave it out"
        )
    chosen = replace(options, batch_size=plan.batch_size, compression=_compression(plan, options.compression))
    return name, replace(costs, partition=_layers(plan)), chosen


def _compression(plan: Plan, asked: MessagePrecision | None) -> MessagePrecision | None:
    if asked is not None and asked != plan.compression:
        raise InputError(
            f"--plan: got --compression {asked} too, expected none: the plan compresses nothing; leave it out"
        )
    return plan.compression


def _layers(plan: Plan) -> str:
    return ",".join(map(str, plan.partition))
