"""The advance that AvgPipe's Algorithm 1 would find, predicted (PPoPP 2023, section 4.2).

The algorithm raises `advance` by one after every batch until a batch is no faster, or memory runs out. It gains at
most as much as all forwards before all backwards (AFAB), which waits least for messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipesched.simulator import SAME
from pipesched.simulator.tuner.setting import Setting
from pipesched.simulator.tuner.setting_outcome import SettingOutcome

_SAME_DRIFTING = 0.01
"""Relative; times of several pipelines, which drift, differ by more than roundings."""


def smallest_advance(judge: Callable[[Setting], SettingOutcome], setting: Setting) -> SettingOutcome | None:
    """Return the setting with the smallest `advance` that takes AFAB's time.

    Args:
        judge: Evaluates a setting, as `evaluate` of a problem.
        setting: A setting of AvgPipe's schedule, with any advance.

    Returns:
        The outcome, or None if all fitting settings are slower, or the time of AFAB is unknown.
    """
    most = setting.num_microbatches - 1  # further ahead the last rank but one cannot be
    afab = judge(replace(setting, advance=most))
    if afab.seconds is None:
        return None
    same = SAME if setting.num_pipelines == 1 else _SAME_DRIFTING
    for advance in range(most + 1):
        outcome = judge(replace(setting, advance=advance))
        if not outcome.fits:
            return None
        if outcome.seconds is not None and outcome.seconds <= afab.seconds * (1 + same):
            return outcome
    return None
