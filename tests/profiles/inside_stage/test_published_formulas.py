"""The operators of a GPT against published formulas, and against PyTorch's own count."""

import inspect
from dataclasses import replace

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from pipesched.profiles.clusters import Link
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage import Fabric, estimated_profile
from pipesched.profiles.inside_stage.layer_operators import LayerMaker
from pipesched.profiles.io import load_gpu, model_shape
from pipesched.profiles.models import build_layers, draw_batch, resolve_model
from pipesched.profiles.models.language_models import gpt

GPT3 = replace(model_shape("gpt:layers=96,width=12288,heads=96,context=2048,vocab=51200"), has_dropout=True)
SMALL = model_shape("gpt:layers=2,width=32,heads=4,context=16,vocab=256")
UNFUSED = LayerSharding(attention="unfused")
NODE = Fabric(8, Link(5e-6, 450e9), Link(1e-5, 50e9))


def flops(layer):
    passes = layer.forward, layer.backward_input, layer.backward_weight
    return tuple(sum(operator.flops for operator in layer_pass.operators) for layer_pass in passes)


def layers_of(shape, samples, sharding):
    maker = LayerMaker(shape, samples, sharding)
    return [maker.embedding(), maker.block(), maker.head()]


def test_gpt_3_has_its_published_number_of_parameters():
    """arXiv:2104.04473, equation 2; it has one matrix for embedding and head, and leaves out the last norm."""
    layers, width, context, vocab = 96, 12288, 2048, 51200
    embedding, block, head = layers_of(GPT3, 1, UNFUSED)
    total = embedding.parameters + layers * block.parameters + head.parameters - vocab * width - 2 * width
    terms = 1 + 13 / (12 * width) + (vocab + context) / (12 * layers * width)
    assert total == pytest.approx(12 * layers * width**2 * terms, rel=1e-12)
    assert total / 1e9 == pytest.approx(174.6, abs=0.05)


def test_the_products_of_an_iteration_are_those_of_the_published_formula():
    """arXiv:2104.04473, equation 3: with recomputation 96 B s l h^2 (1 + s / 6h + V / 16lh); without, less one F."""
    batch, layers, width, context, vocab = 3, 96, 12288, 2048, 51200
    embedding, block, head = layers_of(GPT3, batch, UNFUSED)
    once = sum(flops(embedding)) + layers * sum(flops(block)) + sum(flops(head))
    unit, attention = batch * context * layers * width**2, 1 + context / (6 * width)
    assert once == pytest.approx(72 * unit * (attention + vocab / (12 * layers * width)), rel=1e-12)
    again = once + layers * flops(block)[0]
    assert again == pytest.approx(96 * unit * (attention + vocab / (16 * layers * width)), rel=1e-12)


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "moments"), [(0, 2, 4, 12), (1, 2, 4, 3), (2, 2, 1, 3), (3, 2 / 4, 1, 3)]
)
def test_training_states_have_the_bytes_per_parameter_of_the_zero_paper(zero, weights, gradients, moments):
    """arXiv:1910.02054, figure 1, with float32 gradients: K = 12 of Adam, over 4 copies."""
    profile = estimated_profile(GPT3, LayerSharding(data=4, zero=zero), load_gpu("h100"), NODE, [1], "adam")
    block, parameters = profile.layers[1], LayerMaker(GPT3, 1, LayerSharding()).block().parameters
    assert block.weight_bytes == pytest.approx(weights * parameters, rel=1e-6)
    assert block.optimizer_bytes == pytest.approx((gradients + moments) * parameters, rel=1e-6)
    assert block.kept_gradient_bytes == pytest.approx(gradients * parameters, rel=1e-6)


def test_a_step_moves_the_bytes_of_its_states():
    """Gradients are read twice and zeroed, 3 x 4 bytes; Adam reads and writes 12 bytes, and writes 2 of the weight."""
    gpu = load_gpu("h100")
    profile = estimated_profile(GPT3, LayerSharding(), gpu, NODE, [1], "adam")
    moved = (3 * 4 + 2 * 12 + 2) * LayerMaker(GPT3, 1, LayerSharding()).block().parameters
    seconds = moved / (gpu.kernels.memory * gpu.memory_bandwidth_bytes_per_s) + 2 * gpu.kernels.launch_s
    assert profile.layers[1].step_s == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("tensor", [1, 8])
def test_the_passes_of_a_block_take_what_the_zero_bubble_paper_says(tensor):
    """arXiv:2401.10241, table 1; attention that is computed again takes another 4s in I."""
    s, b, h = 2048, 2, 12288
    block = LayerMaker(GPT3, b, replace(UNFUSED, tensor=tensor)).block()
    units = [24 * h + 4 * s, 24 * h + 8 * s, 24 * h]
    assert flops(block) == tuple(s * b * h * unit // tensor for unit in units)
    again = LayerMaker(GPT3, b, replace(UNFUSED, tensor=tensor, recompute="selective")).block()
    assert flops(again)[1] == s * b * h * (24 * h + 12 * s) // tensor


def test_pytorch_counts_the_same_products_and_parameters_in_our_gpt():
    model = resolve_model(SMALL.name)
    modules = build_layers(model, 0, SMALL.layers + 2, seed=0)
    embedding, block, head = layers_of(SMALL, 3, UNFUSED)
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


def test_the_built_in_gpt_has_the_defaults_of_its_shape():
    parameters, shape = inspect.signature(gpt).parameters, model_shape("gpt")
    expected = {"layers": shape.layers, "width": shape.hidden, "heads": shape.heads}
    expected |= {"context": shape.sequence, "vocab": shape.vocab}
    assert {name: parameters[name].default for name in expected} == expected


@pytest.mark.parametrize(
    ("settings", "per_number"),
    [
        ({}, 34 + 80),
        ({"recompute": "selective"}, 34),
        ({"tensor": 8}, 10 + 24 / 8 + 80 / 8),
        ({"tensor": 8, "recompute": "selective"}, 10 + 24 / 8),
        ({"tensor": 8, "has_sequence": True}, (34 + 80) / 8),
        ({"tensor": 8, "has_sequence": True, "recompute": "selective"}, 34 / 8),
    ],
)
def test_a_block_keeps_what_the_published_formulas_say(settings, per_number):
    """arXiv:2205.05198, table 2; 5as/h is 80 for GPT-3. The formulas leave out the statistics of two norms."""
    s, b, h = 2048, 4, 12288
    block = LayerMaker(GPT3, b, replace(UNFUSED, **settings)).block()
    shared = 8 if settings.get("has_sequence") else 1
    statistics_bytes = 2 * 2 * 4 * s * b // shared
    assert block.input_bytes + block.saved_bytes - statistics_bytes == s * b * h * per_number
    assert block.output_bytes == 2 * s * b * h // shared


@pytest.mark.parametrize("tensor", [1, 8])
def test_fused_attention_takes_half_of_the_products_that_pytorch_counts(tensor):
    """PyTorch counts the whole square; causal kernels skip the half above the diagonal."""
    s, b, h, a = 2048, 2, 12288, 96
    query = (b, a // tensor, s, h // a)
    block = LayerMaker(GPT3, b, LayerSharding(tensor=tensor)).block()
    linears = 24 * s * b * h * h // tensor
    assert flops(block) == (
        linears + sdpa_flop_count(query, query, query) // 2,
        linears + sdpa_backward_flop_count(query, query, query, query) // 2,
        linears,
    )
