"""Options on how torch works, and what they stand for; torch is loaded only when one is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.cli.errors import NotThereError
from pipesched.executor import Averaging, DeviceKind, Dtype, MessagePrecision

if TYPE_CHECKING:
    import torch

    from pipesched.profiles.models import Model

MODEL = typer.Argument(
    help="gpt, conv, lstm, digits, mlp, with arguments as gpt:layers=8,width=320; or module:factory."
)
ModelName = Annotated[str, MODEL]
TrustModel = Annotated[
    bool,
    typer.Option("--trust-model", help="Import the package.module:factory that the file names as its model."),
]
DtypeOption = Annotated[Dtype, typer.Option(help="Of weights and activations, as torch names it.")]
AveragingOption = Annotated[
    Averaging, typer.Option(help="Elastic: with the reference of the iteration before, or wait for that of this one.")
]
DeviceOption = Annotated[DeviceKind, typer.Option(help="Where to compute.")]
Optimizer = Annotated[Literal["sgd", "momentum", "adam", "adamw"], typer.Option(help="PyTorch's.")]
CompressionOption = Annotated[
    MessagePrecision | None, typer.Option(help="Send activations and gradients in half precision where it fits.")
]
Threads = Annotated[int, typer.Option(help="CPU threads per rank.", min=1, max=1024)]


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of that name."""
    import torch

    found: torch.dtype = getattr(torch, name)
    return found


def require_gpu(got: str, advice: str) -> None:
    """Refuse an option that needs a GPU where there is none; `got` says which option, `advice` what to try.

    Raises:
        NotThereError: There is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise NotThereError(f"{got}, expected a GPU, and torch sees none here; try {advice}")


def load_model(text: str) -> Model:
    """Return the model that `text` names, as `resolve_model` does; what a user's factory prints goes to stderr."""
    from pipesched.profiles.models import resolve_model
    from pipesched.profiles.processes import prints_to_stderr

    with prints_to_stderr():
        return resolve_model(text)
