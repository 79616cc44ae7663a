"""`pipesched.profile`: what is measured besides the layers."""

from types import SimpleNamespace

import pytest

import pipesched
from pipesched.profiles.costs import SharingPrice
from pipesched.workflows import ArgumentError
from tests.profiles.hand_profiles import layer, measurement, profile

MLP = "mlp:width=4,layers=1"


def test_what_sharing_a_core_costs_is_measured_for_the_pipelines_that_are_asked_for(monkeypatch):
    asked, told = [], []

    def measure_sharing(model, settings, num_processes, progress):
        asked.append(
            SimpleNamespace(model=model.name, num=num_processes, repeats=settings.repeats, sizes=settings.sizes)
        )
        progress(1.0)
        return tuple(SharingPrice(number, (1.0 + 0.1 * number,) * 11) for number in range(2, num_processes + 1))

    monkeypatch.setattr("pipesched.profiles.measuring.measure_sharing", measure_sharing)
    monkeypatch.setattr(
        "pipesched.profiles.measuring.profile_model", lambda *_model, **_settings: profile(layer(measurement(2)))
    )
    alone = pipesched.profile(MLP, [2], pipelines=1)
    assert (asked, alone.profile.sharing) == ([], ())
    shared = pipesched.profile(MLP, [2], pipelines=3, repeats=4, passes=2, progress=told.append)
    assert asked == [SimpleNamespace(model=MLP, num=3, repeats=8, sizes=(2,))]
    assert [price.num_processes for price in shared.profile.sharing] == [2, 3]
    assert told == [1.0]
    assert "1.3 times the processor time where 3 processes share a core" in shared.table().caption


def test_a_gpu_is_shared_by_utilisation():
    with pytest.raises(ArgumentError, match="pipelines: got 2 with device 'cuda', expected 1; leave it out"):
        pipesched.profile(MLP, [1], pipelines=2, device="cuda")
