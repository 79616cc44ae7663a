"""Options for torch, and their values; torch is loaded only if one is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import InputError, NotThereError

if TYPE_CHECKING:
    from pipesched.profiles.models import Model

ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="gpt, conv, lstm, digits, mlp, with arguments as gpt:layers=8,width=320; or module:factory, "
        "path.py:factory.",
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="MODEL, as an option.")]
TrustModel = Annotated[
    bool,
    typer.Option("--trust-model", help="Import the package.module:factory that the file names as its model."),
]


def model_of(given: str | None, option: str | None) -> str | None:
    """Return the model of MODEL or ``--model``, or None if neither is given.

    Raises:
        InputError: Both are given.
    """
    if given is not None and option is not None:
        raise InputError(f"--model: got {option} beside MODEL {given}, expected one of them; leave one out")
    return given if option is None else option


def require_gpu(got: str, advice: str) -> None:
    """Refuse an option that needs a GPU if there is none; errors name the option (`got`) and the remedy (`advice`).

    Raises:
        NotThereError: There is no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise NotThereError(f"{got}, expected a GPU, and torch sees none here; try {advice}")


def require_device(device: str) -> None:
    """Refuse ``--device cuda`` if there is no GPU.

    Raises:
        NotThereError: There is no GPU.
    """
    if device == "cuda":
        require_gpu("--device: got cuda", "--device cpu")


def load_model(text: str) -> Model:
    """Return the model of this name, as `resolve_model` does; prints of a user's factory go to stderr."""
    from pipesched.profiles.models import resolve_model
    from pipesched.profiles.processes import prints_to_stderr

    with prints_to_stderr():
        return resolve_model(text)
