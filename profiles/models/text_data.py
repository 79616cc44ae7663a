"""Text as bytes: the help topics of ``pydoc``, English prose that is part of every Python, or a user's file.

The last twentieth is held out, to score a trained model.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pipesched.profiles import ProfileError
from pipesched.profiles.models.model import class_loss
from pipesched.schedules import ScheduleError
from pipesched.schedules.formats import read_bytes

_HELD_OUT = 20
"""Total bytes per held-out byte; the last bytes are held out."""
_NUM_HELD_OUT = 64
"""Number of held-out samples."""


@cache
def text_bytes(file: str = "") -> Tensor:
    """Return the whole text as bytes, shape (length,), uint8; do not write to it.

    Args:
        file: The file to read; empty for the help topics.

    Raises:
        ProfileError: The file cannot be read, is above 64 MiB, or is no regular file.
    """
    if file:
        content = _content(file)
    else:
        from pydoc_data.topics import topics

        content = "\n".join(topics[key] for key in sorted(topics)).encode()
    return torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)


def crops(num_samples: int, length: int, seed: int, file: str = "", *, is_held_out: bool = False) -> Tensor:
    """Return random crops of the training text, or of the held-out text, shape (num_samples, length), int64.

    Raises:
        ProfileError: The text cannot be read, or is too short.
    """
    text = text_bytes(file)
    num_trained = _num_trained(text, length, file)
    part = text[num_trained:] if is_held_out else text[:num_trained]
    starts = torch.randint(len(part) - length, (num_samples, 1), generator=torch.Generator().manual_seed(seed))
    return part[starts + torch.arange(length)].long()


def next_bytes(
    context: int, file: str, num_samples: int, seed: int, *, is_held_out: bool = False
) -> tuple[Tensor, Tensor]:
    """Return a language model's inputs and targets: bytes, and the next byte of each; both (samples, context).

    Raises:
        ProfileError: The text cannot be read, or is too short.
    """
    tokens = crops(num_samples, context + 1, seed, file, is_held_out=is_held_out)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def held_out_next_bytes(context: int, file: str) -> tuple[Tensor, Tensor]:
    """Return inputs and targets as in `next_bytes`, from the held-out text, always the same."""
    return next_bytes(context, file, _NUM_HELD_OUT, seed=0, is_held_out=True)


def next_byte_loss(scores_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Return the mean cross entropy [nats per byte], as `class_loss`."""
    return class_loss(scores_btv.flatten(0, 1), targets_bt.flatten())


def _content(file: str) -> bytes:
    path = Path(file)
    if path.exists() and not path.is_file():  # a device or a pipe may have no end
        raise ProfileError(f"text {file}: got no regular file, expected one; try a file of text")
    try:
        return read_bytes(path)
    except ScheduleError as error:
        raise ProfileError(f"text {error}") from error


def _num_trained(text: Tensor, length: int, file: str) -> int:
    held_out = max(length + 1, len(text) // _HELD_OUT)
    if len(text) < 2 * held_out:
        raise ProfileError(
            f"text {file or 'pydoc_data.topics'}: got {len(text)} bytes, expected at least {2 * held_out} for samples "
            f"of {length} bytes; use a longer text or a shorter context"
        )
    return len(text) - held_out
