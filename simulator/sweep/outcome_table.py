"""The outcomes of a sweep as columns of numbers, of which no row is made before it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, final, overload

from pipesched.simulator.sweep.setting_table import SettingBlock, SettingTable
from pipesched.simulator.sweep.swept_setting import SweptOutcome

_REALS = "seconds", "bubble_fraction", "steady_s_per_microbatch", "steady_bubble_fraction"


class OutcomeBlock(NamedTuple):
    """What the settings of a block amount to, as columns: arrays, or lists.

    Attributes:
        numbers: The number of each setting.
        seconds: Makespans; NaN where nothing could be predicted, as of the next three where that is not known [s].
        bubble_fraction: idle / (devices x makespan).
        steady_s_per_microbatch: Seconds of a micro-batch when it goes on [s].
        steady_bubble_fraction: Idle share of all device time at that pace.
        held_bytes: Most that a device holds; -1 where the costs have no bytes.
        is_judged: Whether it is known if it fits.
        reasons: Why it cannot be, or does not fit, by the place in the block of what does not.
    """

    numbers: Sequence[int]
    seconds: Any
    bubble_fraction: Any
    steady_s_per_microbatch: Any
    steady_bubble_fraction: Any
    held_bytes: Any
    is_judged: Any
    reasons: Mapping[int, str]

    @staticmethod
    def joined(blocks: Sequence[OutcomeBlock]) -> OutcomeBlock:
        """Return several blocks as one."""
        if len(blocks) == 1:
            return blocks[0]
        columns = {name: [value for block in blocks for value in getattr(block, name)]
                   for name in OutcomeBlock._fields[:-1]}  # fmt: skip
        firsts = accumulate((len(block.numbers) for block in blocks), initial=0)
        reasons = {first + place: reason for first, block in zip(firsts, blocks, strict=False)
                   for place, reason in block.reasons.items()}  # fmt: skip
        return OutcomeBlock(**columns, reasons=reasons)

    @staticmethod
    def refused(block: SettingBlock, reason: str) -> OutcomeBlock:
        """Return the block of settings that cannot be."""
        return OutcomeBlock.of(block.numbers, [SweptOutcome(setting, reason=reason) for setting in block.settings()])

    @staticmethod
    def of(numbers: Sequence[int], outcomes: Sequence[SweptOutcome]) -> OutcomeBlock:
        """Return the block of some outcomes."""
        values = {name: [getattr(outcome, name) for outcome in outcomes] for name in _REALS}
        return OutcomeBlock(
            numbers,
            **{name: [math.nan if real is None else real for real in reals] for name, reals in values.items()},
            held_bytes=[-1 if outcome.held_bytes is None else outcome.held_bytes for outcome in outcomes],
            is_judged=[outcome.is_judged for outcome in outcomes],
            reasons={place: outcome.reason for place, outcome in enumerate(outcomes) if outcome.reason is not None},
        )


@final
class OutcomeTable(Sequence[SweptOutcome]):
    """All outcomes of a sweep, in an order.

    Args:
        settings: The settings.
    """

    def __init__(self, settings: SettingTable) -> None:
        import numpy as np

        self.settings = settings
        count = len(settings)
        self._reals = {name: np.full(count, np.nan) for name in _REALS}
        self._held_bytes: Any = np.full(count, -1, np.int64)
        self._is_judged = np.zeros(count, bool)
        self._fits = np.ones(count, bool)
        self._reasons: dict[int, str] = {}
        self._numbers: Any = np.arange(count)
        self._made: tuple[SweptOutcome, ...] | None = None

    def put(self, block: OutcomeBlock) -> None:
        """Put the outcomes of a block in."""
        numbers = block.numbers
        where = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
        for name, column in self._reals.items():
            column[where] = getattr(block, name)
        try:
            self._held_bytes[where] = block.held_bytes
        except OverflowError:  # more than numbers of 64 bits are
            self._held_bytes = self._held_bytes.astype(object)
            self._held_bytes[where] = block.held_bytes
        self._is_judged[where] = block.is_judged
        for place, reason in block.reasons.items():
            self._fits[numbers[place]] = False
            self._reasons[int(numbers[place])] = reason

    def put_in_order(self, by: str) -> None:
        """Let those that fit come first, then those that do not, then those that cannot be, each by `by` and memory."""
        import numpy as np

        everything = np.arange(len(self))
        values = np.array(self._measure(by, everything), float)
        held = np.where(self._held_bytes < 0, np.inf, self._held_bytes.astype(float))
        keys = held, np.where(np.isnan(values), np.inf, values), np.isnan(self._reals["seconds"]), ~self._fits
        self._numbers, self._made = np.lexsort(keys), None

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[SweptOutcome]:
        if self._made is None:
            self._made = tuple(map(self.outcome_of, self._numbers.tolist()))
        return iter(self._made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    @overload
    def __getitem__(self, index: int) -> SweptOutcome: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[SweptOutcome, ...]: ...

    def __getitem__(self, index: int | slice) -> SweptOutcome | tuple[SweptOutcome, ...]:
        if isinstance(index, slice):
            return tuple(map(self.outcome_of, self._numbers[index].tolist()))
        return self.outcome_of(int(self._numbers[index]))

    @property
    def can_be(self) -> bool:
        """Whether anything of the table could be predicted."""
        import numpy as np

        return not np.isnan(self._reals["seconds"]).all()

    def columns(self) -> dict[str, Any]:
        """Return all columns, those of the settings first, as arrays; NaN or None where there is no such thing."""
        numbers = self._numbers
        columns = {name: self.settings.column(name, numbers) for name in self.settings.columns}
        return columns | {name: self._measure(name, numbers) for name in SweptOutcome.MEASURES}

    def _measure(self, name: str, numbers: Any) -> Any:
        """Return a measure of settings, as `SweptOutcome.measures` has it."""
        import numpy as np

        seconds = self._reals["seconds"][numbers]
        match name:
            case "makespan_s":
                return seconds
            case "s_per_microbatch":
                return seconds / self.settings.column("num_microbatches", numbers)
            case "s_per_sample":
                sizes = self.settings.column("microbatch_size", numbers)
                counts = self.settings.column("num_microbatches", numbers)
                return seconds / counts / (sizes if sizes.dtype != object else np.nan)
            case "peak_memory_bytes":
                held = self._held_bytes[numbers]
                return np.where(held < 0, np.nan, held) if (held < 0).any() else held
            case "fits":
                known = self._is_judged[numbers] & ~np.isnan(seconds)
                return np.where(known, self._fits[numbers].astype(object), None)
            case "reason":
                reasons = np.full(len(self), None, object)
                for number, reason in self._reasons.items():
                    reasons[number] = reason
                return reasons[numbers]
            case _:
                return self._reals[name][numbers]

    def outcome_of(self, number: int) -> SweptOutcome:
        """Return the outcome of the setting with a number."""
        held_bytes = int(self._held_bytes[number])
        return SweptOutcome(
            self.settings[number],
            **{name: _real(self._reals[name][number]) for name in _REALS},
            held_bytes=None if held_bytes < 0 else held_bytes,
            is_judged=bool(self._is_judged[number]),
            reason=self._reasons.get(number),
        )


def _real(value: Any) -> float | None:
    """Return a number of Python; None of NaN."""
    number = float(value)
    return None if math.isnan(number) else number
