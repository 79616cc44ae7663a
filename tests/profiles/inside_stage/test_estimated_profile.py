"""The estimated profile of a transformer: published peaks of memory, and counts of operations and parameters."""

import re
from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Link
from pipesched.profiles.costs import LayerSharding, ShardedWeights
from pipesched.profiles.inside_stage import Fabric, estimated_profile
from pipesched.profiles.inside_stage.layer_operators import LayerMaker
from pipesched.profiles.io import load_gpu, model_shape

NODE = Fabric(8, Link(5e-6, 900e9), Link(1e-5, 50e9))

# Peak memory of Megatron-LM on 8 B200, micro-batches of 1 sample: github.com/MooreThreads/SimuMax (Apache-2.0),
# docs/b200/b200_release_v1.2_summary.json
PUBLISHED_GIB = [
    ("llama3-70b:layers=12,seq=4096", 2, 1, 4, 60.680),
    ("llama3-70b:layers=12,seq=4096", 4, 1, 2, 39.072),
    ("llama3-70b:layers=12,seq=4096", 8, 1, 1, 28.286),
    ("llama3-405b:layers=4,seq=4096", 2, 1, 4, 81.591),
    ("llama3-405b:layers=4,seq=4096", 8, 1, 1, 38.574),
    ("llama3-70b:layers=12,seq=32768", 1, 8, 1, 104.509),
    ("llama3-405b:layers=4,seq=32768", 2, 4, 1, 87.025),
    ("llama3-70b:layers=12,seq=131072", 2, 4, 1, 112.668),
]


def sharded(tensor=1, context=1, data=1, **settings):
    return LayerSharding(
        tensor=tensor,
        has_sequence=tensor > 1,
        context=context,
        data=data,
        zero=1,
        has_fused_loss=True,
        **settings,
    )


@pytest.mark.parametrize(("model", "tensor", "context", "data", "peak_gib"), PUBLISHED_GIB)
def test_the_peak_memory_of_a_stage_is_the_published_one(model, tensor, context, data, peak_gib):
    shape = model_shape(model)
    profile = estimated_profile(shape, sharded(tensor, context, data), load_gpu("b200"), NODE, [1], "adam")
    cost = profile.cost_of_layers(0, shape.layers + 2)
    peak = cost.weight_bytes + cost.optimizer_bytes + cost.saved_bytes + cost.working_bytes
    assert peak / 2**30 == pytest.approx(peak_gib, rel=0.01)


def test_a_block_of_multi_token_prediction_has_its_parameters_and_two_operations_per_weight_and_token():
    shape, alone = model_shape("deepseek-v3:seq=4096"), LayerSharding()
    block, layer = (make(LayerMaker(shape, 1, alone), True) for make in (LayerMaker.block, LayerMaker.prediction))
    own = 2 * shape.hidden**2 + 3 * shape.hidden
    assert layer.parameters == block.parameters + own
    assert layer.expert_parameters == block.expert_parameters
    further = sum(op.flops for op in layer.forward.operators) - sum(op.flops for op in block.forward.operators)
    assert further == 2 * 4096 * (2 * shape.hidden**2 + shape.vocab * shape.hidden)


@pytest.mark.parametrize("tensor", [1, 8])
def test_a_block_takes_two_operations_per_weight_and_token_and_four_in_its_backward(tensor):
    shape = model_shape("llama3-70b:seq=4096")
    block = LayerMaker(shape, 2, sharded(tensor)).block()
    tokens, products = 2 * 4096, {"attention", "attention_backward"}
    by_pass = [
        sum(op.flops for op in layer_pass.operators if op.kind not in products)
        for layer_pass in (block.forward, block.backward_input, block.backward_weight)
    ]
    weights = shape.attention_weights + shape.feed_forward_weights(shape.ffn)
    assert by_pass == [2 * tokens * weights // tensor] * 3
    (attention,) = (op for op in block.forward.operators if op.kind == "attention")
    assert attention.flops == 2 * 4096**2 * shape.heads * shape.head_size * 2 // tensor  # half of 4 b s^2 h


def test_the_gpus_of_a_tensor_group_share_matrices_and_activations():
    shape = model_shape("llama3-70b:seq=4096")
    alone, shared = (LayerMaker(shape, 1, sharded(tensor)).block() for tensor in (1, 8))
    assert alone.saved_bytes / shared.saved_bytes == pytest.approx(8)
    assert alone.output_bytes == 8 * shared.output_bytes
    assert [c.kind for c in shared.forward.collectives] == ["all_gather", "reduce_scatter"] * 2
    assert not alone.forward.collectives


def test_full_recomputation_keeps_the_input_alone_and_runs_the_forward_again():
    shape = model_shape("llama3-8b")
    plain, again = (LayerMaker(shape, 1, sharded(recompute=word)).block() for word in ("none", "full"))
    assert again.saved_bytes == 0
    assert again.backward_input.operators == plain.forward.operators + plain.backward_input.operators


def test_a_longer_micro_batch_takes_longer_and_more_gpus_take_less():
    shape = model_shape("llama3-8b")
    profile = estimated_profile(shape, sharded(), load_gpu("b200"), NODE, [1, 2, 4])
    seconds = [profile.cost_of_layers(0, shape.layers + 2, size).both_s for size in (1, 2, 4)]
    assert seconds[0] < seconds[1] < seconds[2] < 4 * seconds[0]
    split = estimated_profile(shape, sharded(4), load_gpu("b200"), NODE, [1]).cost_of_layers(0, shape.layers + 2)
    assert seconds[0] / 4 < split.both_s < seconds[0]


def test_zero_3_in_a_pipeline_works_in_the_memory_of_zero_1():
    shape = model_shape("llama3-70b:layers=4")
    first, last = (
        estimated_profile(shape, LayerSharding(tensor=2, data=8, zero=zero), load_gpu("b200"), NODE, [1])
        for zero in (1, 3)
    )
    halves = [(0, 3), (3, 6)]
    whole, shared = first.costs_of_layers(halves).stages, last.costs_of_layers(halves).stages
    assert [cost.working_bytes for cost in shared] == [cost.working_bytes for cost in whole]
    for cost, layers in zip(shared, (last.layers[:3], last.layers[3:]), strict=True):
        exchanges = [layer.sharded for layer in layers]
        assert cost.gradient_bytes == sum(of.gathered_bytes + of.summed_bytes for of in exchanges)


def test_zero_3_gathers_the_weights_for_each_pass_and_sums_their_gradients():
    shape, split = model_shape("llama3-8b"), LayerSharding(data=8, zero=3)
    block = LayerMaker(shape, 1, split).block()
    assert [(c.kind, c.num_bytes) for c in block.gathers] == [("all_gather", 2 * block.parameters)]
    assert [(c.kind, c.num_bytes) for c in block.sums] == [("reduce_scatter", 4 * block.parameters)]
    profile = estimated_profile(shape, split, load_gpu("b200"), NODE, [1])
    whole = estimated_profile(shape, LayerSharding(data=8, zero=1), load_gpu("b200"), NODE, [1])
    num_bytes = 2 * block.parameters
    gather_s = 23e-6 + 7 * 9.2e-6 + num_bytes * 7 / 8 / (0.723 * 900e9)
    sum_s = 26e-6 + 7 * 8.0e-6 + 2 * num_bytes * 7 / 8 / (0.723 * 900e9)
    assert profile.layers[1].sharded == ShardedWeights(
        pytest.approx(gather_s), pytest.approx(sum_s), num_bytes, 2 * num_bytes
    )
    assert profile.layers[1].measurements[0].backward_s == whole.layers[1].measurements[0].backward_s


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (
            "llama3-8b",
            {"tensor": 5},
            "sharding of llama3-8b: `tensor`: got 5, expected a divisor of heads=32; try `tensor=4`",
        ),
        ("llama3-8b", {"tensor": 0}, "sharding: tensor: got 0, expected at least 1"),
        ("llama3-8b", {"zero": 4}, "sharding: zero: got 4, expected at most 3"),
        ("llama3-8b", {"context": 3}, "`context`: got 3, expected a divisor of sequence=8192; try `context=2`"),
        ("mixtral-8x7b", {"expert": 3, "data": 3}, "`expert`: got 3, expected a divisor of experts=8; try `expert=2`"),
        ("mixtral-8x7b", {"expert": 8, "data": 4}, "`expert`: got 8 x 1 GPUs, expected a divisor of the 4 GPUs"),
        (
            "mixtral-8x7b",
            {"expert_tensor": 2, "tensor": 4},
            "`expert_tensor`: got 2, expected 1 or 4, as `tensor`",
        ),
    ],
)
def test_a_split_that_does_not_divide_the_model_is_refused(model, settings, message):
    with pytest.raises(ProfileError, match=re.escape(message)):
        estimated_profile(model_shape(model), LayerSharding(**settings), load_gpu("b200"), NODE, [1])


def test_a_gpu_without_a_peak_in_the_precision_is_refused():
    with pytest.raises(ProfileError, match="flops_per_s: got no float8"):
        estimated_profile(model_shape("llama3-8b"), LayerSharding(precision="float8"), load_gpu("a100"), NODE, [1])


def test_alternate_recomputation_runs_the_second_product_of_each_pair_again():
    shape = model_shape("llama3-8b:seq=4096")
    block, whole = (LayerMaker(shape, 1, LayerSharding(recompute=how)).block() for how in ("alternate", "none"))
    h, kv, ffn, tokens = 4096, 1024, 14336, 4096
    again = sum(operator.flops for operator in block.backward_input.operators if operator.kind == "matmul")
    again -= sum(operator.flops for operator in whole.backward_input.operators if operator.kind == "matmul")
    assert again == 2 * tokens * h * (kv + h + ffn)  # key, projection and up; kept: query, value, gate and down
    assert block.saved_bytes == 2 * tokens * (h + kv + h + ffn + h) + 4 * tokens * 32


TIED = "transformer:layers=6,hidden=4096,heads=32,vocab=32001,seq=4096,tied=yes"


@pytest.mark.parametrize(
    ("model", "settings", "num_bytes"),
    [
        (TIED, {}, 4 * 32001 * 4096),
        (TIED, {"tensor": 4, "gradient_bytes": 2}, 2 * 8001 * 4096),
        (TIED, {"tensor": 8, "gradient_bytes": 6, "data": 4, "zero": 1}, 4 * 4001 * 4096),
        (TIED.replace("tied=yes", "mtp=1"), {"tensor": 4}, 4 * 8001 * 4096),
        (TIED.replace("tied=yes", "tied=no"), {}, 0),
    ],
)
def test_the_first_and_the_last_stage_share_the_embedding(model, settings, num_bytes):
    profile = estimated_profile(model_shape(model), LayerSharding(**settings), load_gpu("b200"), NODE, [1])
    assert profile.tied_bytes == num_bytes
    layers = profile.num_layers
    assert profile.costs_of_layers([(0, 4), (4, layers)]).tied_bytes == num_bytes
    assert profile.costs_of_layers([(0, layers)]).tied_bytes == 0


@pytest.mark.parametrize("sizes", [[1], [1, 2, 4]])
def test_a_tied_head_has_no_weights_of_its_own_in_one_stage(sizes):
    """Adam in float32: a parameter has 4 bytes, its gradient 4 and its moments 8."""
    split = LayerSharding(precision="float32")
    profile = estimated_profile(model_shape(TIED), split, load_gpu("b200"), NODE, sizes, "adam")
    untied = replace(profile, is_tied=False)
    layers, head = profile.num_layers, profile.layers[-1]
    alone, with_copy = (of.cost_of_layers(0, layers, sizes[-1]) for of in (profile, untied))
    num_parameters = (32001 + 1) * 4096  # a row per token, and the last norm
    assert with_copy.weight_bytes - alone.weight_bytes == 4 * num_parameters
    assert with_copy.optimizer_bytes - alone.optimizer_bytes == 12 * num_parameters
    assert with_copy.step_s - alone.step_s == pytest.approx(head.step_s)
    same = {name: getattr(with_copy, name) for name in ("weight_bytes", "optimizer_bytes", "step_s")}
    same |= {name: getattr(with_copy, name) for name in ("kept_gradient_bytes", "copy_s", "predict_s", "average_s")}
    assert replace(alone, **same) == with_copy
    halves = [(0, 4), (4, layers)]
    assert profile.costs_of_layers(halves) == untied.costs_of_layers(halves)


def test_a_short_pass_waits_for_the_hosts_launches_of_its_collectives():
    shape, gpu = model_shape("llama3-8b:seq=16"), load_gpu("h100")

    def forward_s(host_s):
        profile = estimated_profile(shape, sharded(8, host_collective_s=host_s), gpu, NODE, [1])
        return profile.cost_of_layers(1, 2).forward_s

    # tokens are gathered before attention and before the products behind it, and their parts summed after each
    assert forward_s(3e-3) - forward_s(1e-3) == pytest.approx(4 * 2e-3)
