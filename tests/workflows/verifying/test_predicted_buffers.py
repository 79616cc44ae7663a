"""A prediction beside a run counts the receive buffers as the run allocates them."""

from types import SimpleNamespace

import pytest

from pipesched.executor import RunSettings
from pipesched.profiles import measuring
from pipesched.profiles.models import resolve_model
from pipesched.schedules.builders import build
from pipesched.workflows.arguments import ScheduleSource
from pipesched.workflows.simulating import Setup
from pipesched.workflows.verifying import round_verification, schedule_verification, verify_in_rounds, verify_source
from tests.profiles.hand_profiles import layer, profile


@pytest.mark.parametrize(
    ("settings", "buffers"),
    [
        (RunSettings(), "pooled"),
        (RunSettings(transport="streams"), "pooled"),
        (RunSettings(device="cuda"), "at_use"),
        (RunSettings(device="cuda", transport="processes"), "pooled"),
    ],
)
@pytest.mark.parametrize("in_rounds", [False, True])
def test_a_run_is_predicted_with_the_buffers_that_it_has(monkeypatch, settings, buffers, in_rounds):
    given = []
    for module in (schedule_verification, round_verification):
        monkeypatch.setattr(module, "run_source", lambda source, *_, **__: SimpleNamespace(source=source))
        monkeypatch.setattr(module, "predict_source", lambda _, setup: given.append(setup.buffers))
        monkeypatch.setattr(module, "held_against", lambda *_: None)
        monkeypatch.setattr(module, "profile_for_runs", lambda *_, **__: profile(layer(), layer()))
    monkeypatch.setattr(measuring, "yardstick_s", lambda *_: 1.0)
    source, setup = ScheduleSource(build("1f1b", 2, 2)), Setup(costs=profile(layer(), layer()))
    if in_rounds:
        verify_in_rounds([source], resolve_model("mlp"), "mlp", 1, lambda *_: setup, settings, 2)
    else:
        verify_source(source, "mlp", setup, settings)
    assert given == [buffers] * (2 if in_rounds else 1)
