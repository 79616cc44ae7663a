"""Name the passes of a user's own run, so that its trace contains them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from pipesched.profiles import ProfileError

_LETTERS = {"forward_one_chunk": "F", "backward_one_chunk": "B", "backward_weight_one_chunk": "W"}
"""The computing methods of a stage of PyTorch, and the passes that they run; a backward that is not full is I."""


@contextmanager
def annotate(*stages: Any) -> Iterator[None]:
    """Name every pass of these stages in the traces of ``torch.profiler`` inside the block: ``PP:2F0``, ``PP:2B0``.

    PyTorch's 1F1B does not name passes, and its other schedules name passes together with the waits before them. Use
    the block in your own script, around the steps:

        with pipesched.annotate(stage), torch.profiler.profile() as profile:
            schedule.step(batch)

    Args:
        stages: This rank's stages, from ``torch.distributed.pipelining``.

    Raises:
        ProfileError: An argument is not a stage of ``torch.distributed.pipelining``.
    """
    for stage in stages:
        if not isinstance(getattr(stage, "stage_index", None), int) or not all(
            callable(getattr(stage, method, None)) for method in _LETTERS
        ):
            raise ProfileError(
                f"annotate: got {type(stage).__name__}, expected a stage of torch.distributed.pipelining; try "
                "annotate(stage)"
            )
    try:
        for stage in stages:
            for method, letter in _LETTERS.items():
                setattr(stage, method, _named(getattr(stage, method), stage.stage_index, letter))
        yield
    finally:
        for stage in stages:
            for method in _LETTERS:
                vars(stage).pop(method, None)


def _named(compute: Callable[..., Any], stage: int, letter: str) -> Callable[..., Any]:
    """Return a method of a stage that runs inside a named range of the profiler."""
    from torch.profiler import record_function

    @wraps(compute)
    def named(microbatch: int, *arguments: Any, **keywords: Any) -> Any:
        is_input = letter == "B" and not keywords.get("full_backward", True)
        with record_function(f"PP:{stage}{'I' if is_input else letter}{microbatch}"):
            return compute(microbatch, *arguments, **keywords)

    return named
