"""Profiles of GPTs that nobody measured, held against published formulas and against PyTorch's own count."""

import inspect
import math

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from pipesched.profiles.clusters import Gpu
from pipesched.profiles.costs import GptExecution, GptShape, gpt_layers, gpt_profile
from pipesched.profiles.io import gpu_names, load_gpu
from pipesched.profiles.io.profile_json import profile_text, read_profile
from pipesched.profiles.models import build_layers, draw_batch, resolve_model
from pipesched.profiles.models.language_models import gpt

GPT3 = GptShape(layers=96, width=12288, heads=96, context=2048, vocab=51200)
SMALL = GptShape(layers=2, width=32, heads=4, context=16, vocab=256)
SLOW = Gpu("slow", 10**9, {"bfloat16": 1e12, "float32": 1e12}, 1e9, 1e9, 0.5, "by hand")
BFLOAT16 = GptExecution(dtype="bfloat16")


def flops(layer):
    passes = layer.forward, layer.backward_input, layer.backward_weight
    return tuple(sum(kernel.flops for kernel in layer_pass.kernels) for layer_pass in passes)


def shared_by(num_gpus, **keywords):
    return GptExecution(tensor_parallel=num_gpus, **keywords)


def test_gpt_3_has_its_published_number_of_parameters():
    """arXiv:2104.04473, equation 2; it has one matrix for embedding and head, and leaves out the last norm."""
    layers, width, context, vocab = 96, 12288, 2048, 51200
    embedding, block, head = gpt_layers(GPT3, 1, BFLOAT16)
    total = embedding.parameters + layers * block.parameters + head.parameters - vocab * width - 2 * width
    terms = 1 + 13 / (12 * width) + (vocab + context) / (12 * layers * width)
    assert total == pytest.approx(12 * layers * width**2 * terms, rel=1e-12)
    assert total / 1e9 == pytest.approx(174.6, abs=0.05)


def test_the_products_of_an_iteration_are_those_of_the_published_formula():
    """arXiv:2104.04473, equation 3: with recomputation 96 B s l h^2 (1 + s / 6h + V / 16lh); without, less one F."""
    batch, layers, width, context, vocab = 3, 96, 12288, 2048, 51200
    embedding, block, head = gpt_layers(GPT3, batch, BFLOAT16)
    once = sum(flops(embedding)) + layers * sum(flops(block)) + sum(flops(head))
    unit, attention = batch * context * layers * width**2, 1 + context / (6 * width)
    assert once == pytest.approx(72 * unit * (attention + vocab / (12 * layers * width)), rel=1e-12)
    again = once + layers * flops(block)[0]
    assert again == pytest.approx(96 * unit * (attention + vocab / (16 * layers * width)), rel=1e-12)


def test_the_passes_of_a_block_take_what_the_zero_bubble_paper_says():
    """arXiv:2401.10241, table 1; attention that is computed again takes another 4s in I."""
    s, b, h = 2048, 2, 12288
    for num_gpus in (1, 8):
        _, block, _ = gpt_layers(GPT3, b, shared_by(num_gpus))
        units = [24 * h + 4 * s, 24 * h + 8 * s, 24 * h]
        assert flops(block) == tuple(s * b * h * unit // num_gpus for unit in units)
        _, again, _ = gpt_layers(GPT3, b, shared_by(num_gpus, selective_recompute=True))
        assert flops(again)[1] == s * b * h * (24 * h + 12 * s) // num_gpus


def test_pytorch_counts_the_same_products_and_parameters_in_our_gpt():
    model = resolve_model(SMALL.name)
    modules = build_layers(model, 0, SMALL.layers + 2, seed=0)
    embedding, block, head = gpt_layers(SMALL, 3, BFLOAT16)
    expected = [embedding, block, block, head]
    assert [sum(p.numel() for p in module.parameters()) for module in modules] == [
        layer.parameters for layer in expected
    ]
    x, _ = draw_batch(model, 3, seed=0)
    for module, layer in zip(modules, expected, strict=True):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
            y = module(x)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward:
            y.sum().backward()
        counted = [forward.get_total_flops(), backward.get_total_flops()]
        assert counted == [flops(layer)[0], sum(flops(layer)[1:])]
        x = y.detach().requires_grad_()


def test_a_shape_is_said_with_the_arguments_and_defaults_of_the_model():
    parameters = inspect.signature(gpt).parameters
    shape = GptShape()
    assert resolve_model(shape.name).layer_names == resolve_model("gpt").layer_names
    for name in ("layers", "width", "heads", "context", "vocab"):
        assert parameters[name].default == getattr(shape, name)


@pytest.mark.parametrize(
    ("keywords", "per_number"),
    [
        ({}, 34 + 80),
        ({"selective_recompute": True}, 34),
        ({"tensor_parallel": 8}, 10 + 24 / 8 + 80 / 8),
        ({"tensor_parallel": 8, "selective_recompute": True}, 10 + 24 / 8),
        ({"tensor_parallel": 8, "sequence_parallel": True}, (34 + 80) / 8),
        ({"tensor_parallel": 8, "sequence_parallel": True, "selective_recompute": True}, 34 / 8),
    ],
)
def test_a_block_keeps_what_the_published_formulas_say(keywords, per_number):
    """arXiv:2205.05198, table 2; 5as/h is 80 for GPT-3. What goes from stage to stage is 2sbh, or a t-th of it."""
    s, b, h = 2048, 4, 12288
    profile = gpt_profile(GPT3, SLOW, [b], GptExecution(**keywords), "adamw")
    cost = profile.cost_of_layers(5, 6, b)
    assert cost.saved_bytes == s * b * h * per_number
    shared = 8 if keywords.get("sequence_parallel") else 1
    assert cost.output_bytes == 2 * s * b * h // shared
    assert profile.cost_of_layers(5, 8, b).saved_bytes == 3 * cost.saved_bytes


@pytest.mark.parametrize("num_gpus", [1, 8])
def test_flash_attention_keeps_a_number_per_row_and_multiplies_as_pytorch_counts(num_gpus):
    s, b, h, a = 2048, 2, 12288, 96
    query = (b, a // num_gpus, s, h // a)
    _, flash, _ = gpt_layers(GPT3, b, shared_by(num_gpus, flash_attention=True))
    _, again, _ = gpt_layers(GPT3, b, shared_by(num_gpus, selective_recompute=True))
    assert flash.saved_bytes - again.saved_bytes == 4 * b * s * a // num_gpus
    linears = 24 * s * b * h * h // num_gpus
    assert flops(flash) == (
        linears + sdpa_flop_count(query, query, query),
        linears + sdpa_backward_flop_count(query, query, query, query),
        linears,
    )


def test_flash_attention_takes_less_time_than_a_whole_matrix():
    seconds = [
        gpt_profile(GPT3, SLOW, [1], GptExecution(**keywords), "adamw").cost_of_layers(5, 6, 1).both_s
        for keywords in ({"flash_attention": True}, {}, {"selective_recompute": True})
    ]
    assert seconds == sorted(seconds)


def test_what_a_block_leaves_for_w_is_its_topmost_mask_less_and_the_gradients_of_four_products():
    s, b, h = 2048, 1, 12288
    cost = gpt_profile(GPT3, SLOW, [b], BFLOAT16, "adamw").cost_of_layers(5, 6, b)
    assert cost.saved_for_weight_bytes == s * b * h * (34 + 80 - 1 + 2 * (3 + 1 + 4 + 1))


@pytest.mark.parametrize(
    ("dtype", "optimizer", "per_parameter"),
    [("bfloat16", "adamw", 12), ("bfloat16", "momentum", 8), ("bfloat16", "sgd", 4), ("float32", "adam", 8)],
)
def test_small_weights_have_a_copy_in_float32_and_moments_are_never_smaller(dtype, optimizer, per_parameter):
    """arXiv:1910.02054, section 3.1: 16 bytes per parameter with Adam, 2 for each weight and 2 for its gradient."""
    execution = GptExecution(dtype=dtype)
    profile = gpt_profile(SMALL, SLOW, [1], execution, optimizer)
    costs = profile.layers[0], profile.layers[1], profile.layers[3]
    for cost, layer in zip(costs, gpt_layers(SMALL, 1, execution), strict=True):
        assert cost.optimizer_bytes == per_parameter * layer.parameters
        assert cost.weight_bytes == (2 if dtype == "bfloat16" else 4) * layer.parameters


def test_a_step_of_adam_reads_and_writes_every_number_once():
    """Gradient read and zeroed, weight written, copy and two moments read and written: 6 + 24 bytes."""
    profile = gpt_profile(SMALL, SLOW, [1], BFLOAT16, "adam")
    _, block, _ = gpt_layers(SMALL, 1, BFLOAT16)
    assert profile.layers[1].step_s == pytest.approx(30 * block.parameters / 1e9)


def test_on_a_gpu_of_endless_memory_bandwidth_seconds_are_flops_by_the_share_of_the_peak():
    gpu = Gpu("fast memory", 1, {"bfloat16": 1e12}, math.inf, 1e9, 0.5, "by hand")
    for efficiency, flops_per_s in ((None, 0.5e12), (0.25, 0.25e12)):
        profile = gpt_profile(SMALL, gpu, [1, 2], BFLOAT16, "adamw", efficiency)
        for size in (1, 2):
            forward, backward_input, backward_weight = (
                16 * size * 32 * (24 * 32 + more * 16) / flops_per_s for more in (4, 8, 0)
            )
            cost = profile.cost_of_layers(1, 2, size)
            assert cost.forward_s == pytest.approx(forward)
            assert cost.backward_input_s == pytest.approx(backward_input)
            assert cost.backward_weight_s == pytest.approx(backward_weight)
            assert cost.backward_s == pytest.approx(backward_input + backward_weight)


def test_gpus_that_share_a_layer_sum_twice_in_each_direction():
    """Nothing else takes time: two all-reduces of 2sbh bytes by ring, 2 (t - 1) / t of them over each link."""
    gpu = Gpu("slow links", 1, {"bfloat16": math.inf}, math.inf, 1e9, 0.5, "by hand")
    profile = gpt_profile(SMALL, gpu, [1], shared_by(4), "adamw")
    cost = profile.cost_of_layers(1, 2, 1)
    expected_s = 2 * (2 * 3 / 4) * (2 * 16 * 32) / 1e9
    assert (cost.forward_s, cost.backward_input_s) == pytest.approx((expected_s, expected_s))
    assert cost.backward_weight_s == 0
    assert profile.cost_of_layers(0, 1, 1).forward_s == pytest.approx(expected_s / 2)
    alone = gpt_profile(SMALL, gpu, [1], BFLOAT16, "adamw")
    assert alone.costs_of_layers([(0, 4)], 1).stages[0].forward_s == 0


def test_the_profile_is_a_file_like_any_other_and_says_that_nothing_was_measured():
    profile = gpt_profile(SMALL, SLOW, [1, 4], shared_by(2, sequence_parallel=True), "adamw")
    assert read_profile(profile_text(profile, "F"), "F") == profile
    assert [layer.name for layer in profile.layers] == ["embedding", "block 0", "block 1", "head"]
    provenance = profile.provenance
    assert provenance.repeats == 0
    assert provenance.device == (
        "slow of 0.9313 GiB, estimated: 0.5 TFLOP/s in bfloat16, 0.001 TB/s, one of 2 that share every layer over "
        "1 GB/s, sequence parallelism"
    )
    assert provenance.device in profile.costs_of_layers([(0, 4)], 2).origin


@pytest.mark.parametrize("name", gpu_names())
def test_a_gpu_of_the_table_has_a_source_and_figures_of_the_right_size(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    assert "nvidia" in gpu.origin or "amd.com" in gpu.origin
    assert "of the peak" in gpu.origin
    assert "memory as a program sees it" in gpu.origin
    assert 16e9 <= gpu.memory_bytes < 320e9
    assert gpu.memory_bytes % 2**20 == 0
    assert 300e9 <= gpu.memory_bandwidth_bytes_per_s <= 8e12
    assert 1e13 < gpu.flops_per_s["float32"] < gpu.flops_per_s["float16"] < 1e16
    assert 32e9 <= gpu.link_bandwidth_bytes_per_s <= 900e9
    assert 0.5 < gpu.efficiency <= 0.9
    assert gpu.multiprocessors is not None
    assert gpu.kernels is not None


@pytest.mark.parametrize("name", [name for name in gpu_names() if "float8" in load_gpu(name).flops_per_s])
def test_float8_has_twice_the_peak_and_a_smaller_share_of_it(name):
    gpu = load_gpu(name)
    assert gpu.flops_per_s["float8"] == pytest.approx(2 * gpu.flops_per_s["bfloat16"], rel=0.02)
    assert gpu.float8_efficiency is not None
    assert gpu.float8_efficiency < gpu.efficiency
