"""The meaning of names of ranges: those of PyTorch's runtimes and of `annotate`, or as a user's patterns say.

    PP:2F0  PP:2SEND_F0             the text of an op: torch.distributed.pipelining, and annotate
    Forward 3  Backward 3           its GPipe, which has one stage on each rank

A pattern is a regular expression, searched for in the name, with a group ``phase`` and, where the name has them, groups
``stage`` and ``microbatch``. What the name has not is counted: the k-th forward pass of a step is that of micro-batch
k, and the stage of a rank with one stage is its place among the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from pipesched.profiles import ProfileError
from pipesched.schedules import Op, Phase, ScheduleError, StageOp, shown
from pipesched.schedules.formats import parse_op

_PREFIX = "PP:"
_GPIPE = re.compile(r"(?P<phase>Forward|Backward) (?P<microbatch>\d+)$")
_GROUPS = {"phase", "stage", "microbatch"}
_MAX_DIGITS = 9

_WORDS = {
    "f": Phase.FORWARD, "fwd": Phase.FORWARD, "forward": Phase.FORWARD,
    "b": Phase.BACKWARD, "bwd": Phase.BACKWARD, "backward": Phase.BACKWARD,
    "i": Phase.BACKWARD_INPUT, "dgrad": Phase.BACKWARD_INPUT, "backward_input": Phase.BACKWARD_INPUT,
    "w": Phase.BACKWARD_WEIGHT, "wgrad": Phase.BACKWARD_WEIGHT, "backward_weight": Phase.BACKWARD_WEIGHT,
    "r": Phase.RECOMPUTE, "recompute": Phase.RECOMPUTE,
}  # fmt: skip
"""What a group ``phase`` may say, in small or capital letters."""


@dataclass(frozen=True, slots=True)
class PassName:
    """A pass as its range is called.

    Attributes:
        stage: None where the name does not say it.
        microbatch: None where the name does not say it.
    """

    phase: Phase
    stage: int | None
    microbatch: int | None


@final
class RangePatterns:
    """Reads the names of ranges."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """Take the patterns of a user; without any, the names of PyTorch's runtimes and of `annotate`.

        Raises:
            ProfileError: One is no regular expression, or lacks a group ``phase``.
        """
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self.meaning = lru_cache(maxsize=1 << 16)(self._meaning)

    def _meaning(self, name: str) -> PassName | Op | None:
        """Return the pass or the op that a range of this name is; None of a name without a meaning.

        Raises:
            ProfileError: A group ``phase`` says an unknown word.
        """
        for pattern in self._patterns:
            if (match := pattern.search(name)) is not None:
                return _named(match.groupdict(), name)
        if self._patterns:
            return None
        if name.startswith(_PREFIX):
            try:
                op = parse_op(name.removeprefix(_PREFIX))
            except ScheduleError:
                return None
            return None if isinstance(op, StageOp) else op
        match = _GPIPE.match(name)
        return None if match is None else _named(match.groupdict(), name)


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
        raise ProfileError(f"pattern: got the number {shown(digits)} in {shown(name)}, expected digits, at most 9")
    return int(digits)
