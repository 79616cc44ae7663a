"""Options for a model and its run, and their values; torch is loaded only if one is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.profiles import io, models, processes
from pipesched.workflows import arguments

if TYPE_CHECKING:
    from pipesched.profiles.io import Plan
    from pipesched.profiles.models import Model

TrustModel = Annotated[
    bool,
    typer.Option("--trust-model", help="Trust the file: import the model that it names (package.module:factory)."),
]


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """The model, as an argument or as an option."""

    given: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="gpt, conv, lstm, digits, mlp, lenet5, alexnet, vgg16, resnet, hf:gpt2, tv:resnet50, with arguments "
            "as gpt:layers=8,width=320; or "
            "module:factory, path.py:factory.",
        ),
    ] = None
    model: Annotated[str | None, typer.Option("--model", help="Same as the argument MODEL.")] = None

    @property
    def name(self) -> str | None:
        """The model of MODEL or ``--model``, or None if neither is given.

        Raises:
            InputError: Both are given.
        """
        if self.given is not None and self.model is not None:
            raise InputError(
                f"--model: got {self.model} beside MODEL {self.given}, expected only one of them; leave one out"
            )
        return self.given if self.model is None else self.model


def load_model(text: str) -> Model:
    """Return the model of this name, as `resolve_model` does; prints of a user's factory go to stderr."""
    with processes.prints_to_stderr():
        return models.resolve_model(text)


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
    if model is not None and not arguments.is_same_model(model, plan.model):
        raise InputError(
            f"--plan: got {option} {model} too, expected none: the plan names {plan.model}; leave the option out"
        )
    if io.costs_file_of(plan.model) is not None:
        raise InputError(
            f"--plan: got a plan of {plan.model}, expected the plan of a model: this plan has only costs of layers; "
            "emulate them with 'pipesched run --plan ..' and --profile or --layer-costs"
        )
    name = io.trusted(plan.model) if trusts or model is not None else plan.model
    io.require_trusted(name)
    return name
