"""The leading settings of many, most of which have only a lower bound of their time.

    least     3   4   5   5   7   9       seconds that a setting takes at least; whether it fits is known
              ↓
              .   4*  5   5   6*  9       a full evaluation (*) can only put it further behind

So the front of the order is the same as after a full evaluation of all settings: a setting at the front with its own
seconds comes before all others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from pipesched.simulator.tuner.setting import Setting
from pipesched.simulator.tuner.setting_outcome import Evaluator, SettingOutcome, rank_key


class LeadingSettings(NamedTuple):
    """Settings of which the leading ones are evaluated.

    Attributes:
        outcomes: Every setting, in the order that it was given in.
        evaluated: Settings with their own seconds and bytes; the others have lower bounds.
    """

    outcomes: tuple[SettingOutcome, ...]
    evaluated: frozenset[Setting]


def leading_settings(
    least: Sequence[SettingOutcome],
    evaluate: Callable[[SettingOutcome], SettingOutcome],
    evaluator: Evaluator,
    count: int,
) -> LeadingSettings:
    """Evaluate settings until the leading ones are known: of either training, and of the rejected settings.

    Args:
        least: Every setting, with lower bounds of its seconds and bytes, and the reason if it is rejected.
        evaluate: Returns the exact seconds and bytes of a setting, which are not below its bounds.
        evaluator: The ranking.
        count: Number of leading settings of each kind.
    """
    outcomes, evaluated = [*least], set[int]()

    def settle(number: int) -> SettingOutcome:
        outcomes[number] = evaluate(outcomes[number])
        evaluated.add(number)
        return outcomes[number]

    shortest_s = _shortest_s(least, settle)
    kinds: defaultdict[object, list[tuple[tuple[object, ...], int]]] = defaultdict(list)
    for number, outcome in enumerate(outcomes):
        kind = outcome.setting.training if outcome.fits else None
        kinds[kind].append((rank_key(outcome, evaluator, shortest_s), number))
    for waiting in kinds.values():
        heapify(waiting)
        num_known = 0
        while waiting and num_known < count:
            _, number = heappop(waiting)
            if number in evaluated:
                num_known += 1
            else:
                heappush(waiting, (rank_key(settle(number), evaluator, shortest_s), number))
    return LeadingSettings(tuple(outcomes), frozenset(outcomes[number].setting for number in evaluated))


def _shortest_s(least: Sequence[SettingOutcome], settle: Callable[[int], SettingOutcome]) -> float:
    """Return the seconds of the fastest that fits; 1 s where none does."""
    shortest_s = math.inf
    fitting = [(outcome.seconds, number) for number, outcome in enumerate(least) if outcome.fits and outcome.seconds]
    for least_s, number in sorted(fitting):
        if least_s >= shortest_s:
            break
        outcome = settle(number)
        shortest_s = min(shortest_s, outcome.seconds if outcome.fits and outcome.seconds else math.inf)
    return shortest_s if shortest_s < math.inf else 1.0
