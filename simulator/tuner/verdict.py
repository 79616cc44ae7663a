"""The verdict on a choice: its regret and rank correlation, once the settings were measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import StatisticsError, correlation, mean


def regret(measured_s: Sequence[float]) -> float:
    """Return how much longer the first setting, the chosen one, took than the best that was run; 0: it is the best."""
    return measured_s[0] / min(measured_s) - 1


def rank_correlation(predicted_s: Sequence[float], measured_s: Sequence[float]) -> float | None:
    """Return Spearman's: 1 if the prediction ranks as the measurement does, -1 if the other way round.

    None where nothing is ranked: fewer than two settings, or all equal.
    """
    try:
        return correlation(_ranks(predicted_s), _ranks(measured_s))
    except StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the place of each value, equal ones sharing the mean of theirs."""
    ordered = sorted(values)
    places: dict[float, list[int]] = {}
    for place, value in enumerate(ordered):
        places.setdefault(value, []).append(place)
    return [float(mean(places[value])) for value in values]
