"""Whether the processes of a run have the same data: the layers of a model, and the weights that several ranks hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from pipesched.executor import ExecutionError
from pipesched.executor.core import copied_weights
from pipesched.executor.transport import gather_texts
from pipesched.profiles.models import Model
from pipesched.schedules import Schedule


def require_equal_layers(model: Model) -> None:
    """Refuse a model whose outline differs between processes; all ranks call this together.

    The outline has no sizes, as no process builds all layers of a list.

    Raises:
        ExecutionError: The outlines differ; all ranks raise the same error.
    """
    _require_equal(model, {"layers": hashlib.sha256(json.dumps(model.outline, sort_keys=True).encode()).hexdigest()})


def require_equal_weights(
    schedule: Schedule, model: Model, bounds: Sequence[tuple[int, int]], stages: Mapping[int, nn.Module]
) -> None:
    """Refuse initial weights that differ between their copies; all ranks call this together.

    Buffers may differ, as statistics of batch normalisation do between replicas, and so may averaged pipelines.

    Args:
        schedule: The lists; gives the replicas.
        model: The model.
        bounds: Half-open range of layers of each stage.
        stages: The layers of the stages of this rank, by number.

    Raises:
        ExecutionError: Copies differ; all ranks raise the same error.
    """
    copied = {} if schedule.averagers else copied_weights(schedule, model, bounds, stages)
    digests = {
        name: " ".join(dict.fromkeys(digest_of([tensor]) for tensor in weight.own))
        for name, weight in copied.items()
        if isinstance(weight.own[0], nn.Parameter)
    }
    _require_equal(model, digests)


def _require_equal(model: Model, own: Mapping[str, str]) -> None:
    require_equal_digests(
        own,
        lambda name, rank, first: (
            f"model {model.name}: rank {rank} has built other {name} than rank {first}, expected the same in every "
            "process; make the factory independent of rank and time, and draw weights from torch's default generator"
        ),
    )


def require_equal_digests(own: Mapping[str, str], fault: Callable[[str, int, int], str]) -> None:
    """Refuse digests that differ between ranks; all ranks call this together.

    Args:
        own: Digests of this rank, by name; ranks may have different names.
        fault: Returns the message for a name, the rank whose digest differs, and the first rank with the name.

    Raises:
        ExecutionError: Digests differ; all ranks raise the same error.
    """
    seen: dict[str, tuple[int, str]] = {}
    for rank, text in enumerate(gather_texts(json.dumps(own))):
        for name, digest in json.loads(text).items():
            first, other = seen.setdefault(name, (rank, digest))
            if digest != other:
                raise ExecutionError(fault(name, rank, first))


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return a digest of the elements of some tensors."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
