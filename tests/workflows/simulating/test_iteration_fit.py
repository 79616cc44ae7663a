"""The fit of an estimate to one known run: closed forms, the exact known seconds, and refusals."""

from dataclasses import asdict, replace

import pytest

import pipesched
from pipesched.profiles.clusters import Cluster, Device, Link, of_nodes
from pipesched.profiles.costs import DeviceCost, with_fit_factor
from pipesched.profiles.io import load_machine, load_profile
from pipesched.workflows import ArgumentError
from tests.profiles.hand_profiles import layer, profile

MODEL = "gpt:layers=6,width=512,heads=8,context=256,vocab=512"
LISTS = pipesched.build("1f1b", 2, 4)
LINKED = Cluster((Device(), Device()), intra=Link(1e-3, 1e9))


def estimate(**settings):
    return pipesched.analytic_profile(MODEL, "a100", [1], **settings).profile


def test_without_messages_the_factor_is_the_ratio_of_known_and_estimated_seconds():
    plain = pipesched.simulate(LISTS, estimate())
    fitted = pipesched.simulate(LISTS, estimate(), fit_iteration_s=1.3 * plain.makespan_s)
    assert fitted.fit.factor == pytest.approx(1.3, rel=1e-9)
    assert fitted.fit.estimated_s == plain.makespan_s
    assert fitted.makespan_s == pytest.approx(1.3 * plain.makespan_s, rel=1e-9)
    assert fitted.rates.seconds == fitted.makespan_s
    assert fitted.rates.utilization == pytest.approx(plain.rates.utilization / 1.3)
    assert plain.fit is None


@pytest.mark.parametrize("share", [0.9, 1.0, 1.5, 20.0])
def test_with_messages_the_prediction_is_the_known_seconds_and_a_factor_gives_it_again(share):
    plain = pipesched.simulate(LISTS, pipesched.Setup(estimate(), LINKED))
    fitted = pipesched.simulate(LISTS, pipesched.Setup(estimate(), LINKED), fit_iteration_s=share * plain.makespan_s)
    assert fitted.makespan_s == pytest.approx(share * plain.makespan_s, rel=1e-9)
    assert abs(fitted.fit.factor - 1) >= abs(share - 1) - 1e-9  # messages do not scale, so layers scale by more
    again = pipesched.simulate(LISTS, pipesched.Setup(estimate(fit_factor=fitted.fit.factor), LINKED))
    assert again.makespan_s == fitted.makespan_s
    assert [d.peak_memory_bytes for d in again.metrics.devices] == [d.peak_memory_bytes for d in plain.metrics.devices]


def test_the_layers_of_the_stages_stay_as_the_estimate_cuts_them():
    lists, slow = pipesched.build("interleaved", 2, 4, 2), replace(LINKED, intra=Link(1e-2, 1e7))
    costs = pipesched.analytic_profile("gpt:layers=14,width=512,heads=8,context=256,vocab=5120", "a100", [1]).profile
    plain = pipesched.simulate(lists, pipesched.Setup(costs, slow))
    fitted = pipesched.simulate(lists, pipesched.Setup(costs, slow), fit_iteration_s=3 * plain.makespan_s)
    assert fitted.layers == plain.layers
    assert fitted.makespan_s == pytest.approx(3 * plain.makespan_s, rel=1e-9)


def test_the_factor_of_a_profile_is_part_of_the_fit(tmp_path):
    twice = pipesched.analytic_profile(MODEL, "a100", [1], fit_factor=2.0)
    twice.save(tmp_path / "twice.json")
    assert load_profile(tmp_path / "twice.json").fit_factor == 2
    known_s = 3 * pipesched.simulate(LISTS, estimate()).makespan_s
    fitted = pipesched.simulate(LISTS, tmp_path / "twice.json", fit_iteration_s=known_s)
    assert fitted.fit.factor == pytest.approx(3)
    assert fitted.fit.estimated_s == pytest.approx(known_s / 3)
    assert fitted.setup.loaded_costs.fit_factor == fitted.fit.factor


SECONDS = {
    *("forward_s", "backward_s", "backward_input_s", "backward_weight_s", "step_s"),
    *("gather_s", "sum_s", "copy_s", "predict_s", "average_s"),
}
"""Fields of a layer's estimate that are seconds."""


def test_a_factor_multiplies_all_seconds_and_no_bytes():
    def numbers(value, name=""):
        if isinstance(value, dict):
            return [number for key, item in value.items() for number in numbers(item, key)]
        if isinstance(value, list | tuple):
            return [number for item in value for number in numbers(item, name)]
        return [(name, value)]

    plain, changed = estimate(data=2, zero=3), set()
    for before, after in zip(plain.layers, with_fit_factor(plain, 3.0).layers, strict=True):
        for (name, first), (_, second) in zip(numbers(asdict(before)), numbers(asdict(after)), strict=True):
            assert second == (3 * first if name in SECONDS and first is not None else first)
            changed |= {name} if second != first else set()
    assert changed == SECONDS
    assert with_fit_factor(plain, 1.0) is plain
    assert with_fit_factor(with_fit_factor(plain, 2.0), 4.0) == with_fit_factor(plain, 4.0)


def test_a_planned_layout_without_messages_takes_the_factor():
    def search(**settings):
        return pipesched.plan_layout(
            MODEL, of_nodes(load_machine("dgx-a100"), 1), batch_size=16, depths=1, num_workers=1, top=1, **settings
        )

    plain, fitted = search().best, search(fit_factor=2.5).best
    assert fitted.setting.sharding.fit_factor == 2.5
    assert fitted.seconds == pytest.approx(2.5 * plain.seconds)
    assert fitted.held_bytes == plain.held_bytes


@pytest.mark.parametrize("share", [0.0, 1e-3, 1e3])
def test_seconds_that_no_factor_gives_are_refused_with_the_seconds_that_one_gives(share):
    setup = pipesched.Setup(estimate(), LINKED)
    known_s = share * pipesched.simulate(LISTS, setup).makespan_s
    with pytest.raises(
        ArgumentError,
        match=r"fit_iteration_s: got .*s, expected .*s to .*s, the times of this setting with factors .*; check",
    ):
        pipesched.simulate(LISTS, setup, fit_iteration_s=known_s)


@pytest.mark.parametrize(
    ("costs", "settings", "reason"),
    [
        (DeviceCost(1.0, 2.0), {}, "got costs that are not an estimate"),
        (profile(layer(), layer()), {}, "got costs that are not an estimate"),
        (estimate(), {"jitter": 0.1}, "got `jitter` too"),
    ],
)
def test_a_fit_needs_an_estimate_without_jitter(costs, settings, reason):
    with pytest.raises(ArgumentError, match=f"fit_iteration_s: {reason}"):
        pipesched.simulate(LISTS, pipesched.Setup(costs, **settings), fit_iteration_s=1.0)
