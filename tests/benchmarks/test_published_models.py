"""Models from their published shapes."""

import pytest

from benchmarks.wpipe import bert, computed_profile, resnext
from pipesched.profiles.io.profile_json import profile_text, read_profile


def total(layers, field):
    return sum(getattr(layer, field) for layer in layers)


def test_resnext_50_has_the_parameters_and_flops_that_torchvision_names():
    """25,028,904 parameters and 4.23 billion multiplications: documentation of ResNeXt50_32X4D_Weights."""
    layers = resnext((3, 4, 6, 3))
    assert len(layers) == 1 + 16 + 1
    assert total(layers, "parameters") == 25_028_904
    assert total(layers, "forward_flops") / 2e9 == pytest.approx(4.23, abs=0.005)
    assert [layer.outputs for layer in layers[::4]] == [
        64 * 56**2,
        512 * 28**2,
        1024 * 14**2,
        1024 * 14**2,
        2048 * 7**2,
    ]


@pytest.mark.parametrize(("layers", "billions"), [(192, 1.4), (768, 5.5)])
def test_the_large_berts_have_as_many_parameters_as_the_paper_of_wpipe_says(layers, billions):
    assert total(bert(layers), "parameters") / 1e9 == pytest.approx(billions, abs=0.05)


def test_bert_base_has_the_parameters_of_the_published_model():
    """109,482,240: bert-base-uncased with its pooler."""
    layers = bert(12)
    assert total(layers, "parameters") == 109_482_240
    assert layers[1].outputs == 128 * 768
    matrices = 4 * 768 * 768 + 2 * 768 * 3072
    assert layers[1].forward_flops == 2 * 128 * matrices + 2 * 2 * 12 * 128 * 128 * 64


def test_seconds_are_flops_by_speed_and_bytes_are_four_per_number():
    layers = bert(2)
    bert_profile = computed_profile("bert", layers, microbatch_size=8, flops_per_s=1e12, step_bytes_per_s=1e9)
    cost = bert_profile.cost_of_layers(1, 3, 8)
    forward_s = 8 * 2 * layers[1].forward_flops / 1e12
    assert cost.forward_s == pytest.approx(forward_s)
    assert cost.backward_s == pytest.approx(2 * forward_s)
    assert cost.output_bytes == 8 * 128 * 768 * 4
    assert cost.weight_bytes == cost.optimizer_bytes == 2 * layers[1].parameters * 4
    assert cost.step_s == pytest.approx(5 * cost.weight_bytes / 1e9)
    assert cost.saved_bytes == 8 * 4 * (2 * layers[1].saved + 2 * 128 * 768)


def test_a_computed_profile_is_a_file_like_any_other():
    resnext_profile = computed_profile("resnext", resnext((1, 1, 1, 1)), 4, 1e12, 1e9)
    assert read_profile(profile_text(resnext_profile, "F"), "F") == resnext_profile
