"""The meaning of the names of ranges: names of passes in known runtimes, or patterns of a user.

    PP:2F0  PP:2SEND_F0  2F0                    the text of an op: torch.distributed.pipelining, and annotate
    Forward 3  Backward 3                       PyTorch's GPipe, which has one stage on each rank
    schedules.py(205): forward_step             Megatron-LM, in torch.profiler's stacks; viztracer has the name first
    pipe/engine.py(700): _exec_forward_pass     DeepSpeed
    F_0,1                                       PiPPy: stage, micro-batch

A pattern is a regular expression, searched for in the name. It has a group ``phase``, and groups ``stage`` and
``microbatch`` if names contain these numbers. Missing numbers are counted: the k-th forward pass of a step belongs to
micro-batch k, and the stage of a rank with one stage is the position of the rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

from pipesched.profiles import ProfileError
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.formats import parse_op
from pipesched.schedules.ops import Compute, Op, Phase, Recv, Send, StageOp

_PREFIX = "PP:"
_TORCH = "torch.distributed.pipelining"
_KNOWN = {
    _TORCH: re.compile(r"^(?P<phase>Forward|Backward) (?P<microbatch>\d+)$"),
    "PiPPy": re.compile(r"^(?P<phase>[FB])_(?P<stage>\d+),(?P<microbatch>\d+)$"),
    "Megatron-LM": re.compile(
        r"schedules\.py\(\d+\): (?P<phase>forward|backward)_step$"
        r"|^(?P<phase_v>forward|backward)_step \(.*schedules\.py:\d+\)$"
        r"|^(?P<phase_n>forward|backward)(?:_step|-compute)$"
    ),
    "DeepSpeed": re.compile(
        r"(?:^|[ .])_exec_(?P<phase>forward|backward)_pass(?: \(.*\))?$|^(?P<phase_n>Forward|Backward)Pass\b"
    ),
}
"""Names of passes by runtime; if a trace has names of several, the first counts. PyTorch names most passes as ops."""

_GROUPS = {"phase", "stage", "microbatch"}
_MAX_DIGITS = 9

_WORDS = {
    "f": Phase.FORWARD, "fwd": Phase.FORWARD, "forward": Phase.FORWARD,
    "b": Phase.BACKWARD, "bwd": Phase.BACKWARD, "backward": Phase.BACKWARD,
    "i": Phase.BACKWARD_INPUT, "dgrad": Phase.BACKWARD_INPUT, "backward_input": Phase.BACKWARD_INPUT,
    "w": Phase.BACKWARD_WEIGHT, "wgrad": Phase.BACKWARD_WEIGHT, "backward_weight": Phase.BACKWARD_WEIGHT,
    "r": Phase.RECOMPUTE, "recompute": Phase.RECOMPUTE,
}  # fmt: skip
"""Accepted values of a group ``phase``, in any case."""


@dataclass(frozen=True, slots=True)
class PassName:
    """The pass in the name of a range.

    Attributes:
        phase: The phase.
        stage: The stage, or None if the name lacks it.
        microbatch: The micro-batch, or None if the name lacks it.
    """

    phase: Phase
    stage: int | None
    microbatch: int | None


def microbatch_of(meaning: PassName | Op) -> int | None:
    """Return the micro-batch of a pass or a message, or None if it is unknown."""
    match meaning:
        case PassName() | Compute():
            return meaning.microbatch
        case Send() | Recv():
            return meaning.message.microbatch
        case _:
            return None


def renumbered(meaning: PassName | Op, first: int) -> PassName | Op:
    """Return a pass or a message with its micro-batch numbered from 0, in a step whose first micro-batch is `first`."""
    match meaning:
        case PassName(microbatch=int(microbatch)) | Compute(microbatch=microbatch):
            return replace(meaning, microbatch=microbatch - first)
        case Send(message=message) | Recv(message=message):
            return replace(meaning, message=message._replace(microbatch=message.microbatch - first))
        case _:
            return meaning


@final
class RangePatterns:
    """Reads the names of ranges."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """Take the patterns of a user; without any, the names of known runtimes and of `annotate`.

        Raises:
            ProfileError: A pattern is no regular expression, or lacks a group ``phase``.
        """
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self.meaning = lru_cache(maxsize=1 << 16)(self._meaning)

    def family(self, name: str) -> str | None:
        """Return the runtime of the name of a pass; None for other names, and with a user's patterns."""
        return None if self._patterns else self._known(name)[0]

    def _meaning(self, name: str) -> PassName | Op | None:
        """Return the pass or the op in the name of a range, or None for other names.

        Raises:
            ProfileError: A group ``phase`` has an unknown value.
        """
        for pattern in self._patterns:
            if (match := pattern.search(name)) is not None:
                return _named(match.groupdict(), name)
        return None if self._patterns else self._known(name)[1]

    @staticmethod
    def _known(name: str) -> tuple[str | None, PassName | Op | None]:
        if name.startswith(_PREFIX) or name[:1].isdecimal():
            try:
                op = parse_op(name.removeprefix(_PREFIX))
            except ScheduleError:
                return None, None
            return (None, None) if isinstance(op, StageOp) else (_TORCH, op)
        for family, pattern in _KNOWN.items():
            if (match := pattern.search(name)) is not None:
                groups = match.groupdict()
                phase = next(text for key, text in groups.items() if key.startswith("phase") and text is not None)
                return family, _named(groups | {"phase": phase}, name)
        return None, None


def family_of(names: Iterable[str], family: Callable[[str], str | None]) -> str | None:
    """Return the first known runtime that has named any of these ranges, or None."""
    families = set(map(family, names))
    return next((known for known in _KNOWN if known in families), None)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ProfileError(f"pattern: got {shown(pattern)} ({error}), expected a regular expression") from error
    groups = set(compiled.groupindex)
    if "phase" not in groups or not groups <= _GROUPS:
        raise ProfileError(
            f"pattern: got {shown(pattern)} with the groups {', '.join(sorted(groups)) or 'none'}, expected phase, and "
            r"stage and microbatch if the name has them; try '(?P<phase>forward|backward)_step$'"
        )
    return compiled


def _named(groups: dict[str, str | None], name: str) -> PassName:
    phase = _WORDS.get((groups["phase"] or "").lower())
    if phase is None:
        raise ProfileError(
            f"pattern: got phase {shown(groups['phase'])} in {shown(name)}, expected one of {', '.join(_WORDS)}; try "
            "another group"
        )
    return PassName(phase, _number(groups.get("stage"), name), _number(groups.get("microbatch"), name))


def _number(digits: str | None, name: str) -> int | None:
    if digits is None:
        return None
    if not digits.isdecimal() or len(digits) > _MAX_DIGITS:
        raise ProfileError(f"pattern: got the number {shown(digits)} in {shown(name)}, expected 1 to 9 digits")
    return int(digits)
