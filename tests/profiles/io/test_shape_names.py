"""Shapes by name: presets against published parameter counts, Hugging Face configurations, free numbers, faults."""

import json
import re

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage import Experts
from pipesched.profiles.inside_stage.layer_operators import LayerMaker
from pipesched.profiles.io import model_shape, preset_names

PUBLISHED = {
    "bloom-176b": 176_247_271_424,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "gpt2": 124_439_808,
    "gpt3-175b": 174_604_259_328,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama2-7b": 6_738_415_616,
    "llama3-405b": 405_853_388_800,
    "llama3-70b": 70_553_706_496,
    "llama3-8b": 8_030_261_248,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
}
"""Parameters as the model cards print them; GPT-3's paper prints 175.0 billion."""
ACTIVE = {
    "deepseek-v2": 21e9,
    "deepseek-v3": 37e9,
    "mixtral-8x22b": 39e9,
    "mixtral-8x7b": 13e9,
    "qwen3-235b-a22b": 22e9,
    "qwen3-30b-a3b": 3.3e9,
}
"""Active parameters as the papers print them, in two digits."""
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 131072,
}
FREE = "transformer:layers=2,hidden=64,heads=4,vocab=100,seq=32"


def num_parameters(shape):
    """Return the parameters of all layers, without prediction blocks; a tied head has none of its own."""
    maker = LayerMaker(shape, 1, LayerSharding())
    layers = [
        maker.embedding(),
        *(maker.block(shape.has_experts(index)) for index in range(shape.layers)),
        maker.head(),
    ]
    tied = shape.vocab * shape.hidden if shape.is_tied else 0
    return sum(layer.parameters + layer.expert_parameters for layer in layers) - tied


def test_presets_have_the_published_number_of_parameters():
    assert {name: num_parameters(model_shape(name)) for name in preset_names()} == PUBLISHED


@pytest.mark.parametrize("name", ACTIVE)
def test_presets_have_the_published_number_of_active_parameters(name):
    shape = model_shape(f"{name}:mtp=0")
    assert shape.weights_per_token + shape.vocab * shape.hidden == pytest.approx(ACTIVE[name], rel=0.02)


def test_prediction_blocks_are_counted_apart():
    """DeepSeek's model card prints 685 billion with the prediction block, its copy of embedding and head included."""
    shape = model_shape("deepseek-v3")
    block = LayerMaker(shape, 1, LayerSharding()).prediction(has_experts=True)
    further = block.parameters + block.expert_parameters + 2 * shape.vocab * shape.hidden
    assert num_parameters(shape) + further == pytest.approx(685e9, rel=0.001)


@pytest.mark.parametrize(
    "name",
    [
        *PUBLISHED,
        "llama3-70b:layers=12,seq=8192",
        "gpt:layers=3,width=32,heads=4",
        f"{FREE},experts=8,topk=2,expert_ffn=32,shared_experts=1,moe_every=2,mla=yes,mtp=1",
    ],
)
def test_the_name_of_a_shape_gives_the_shape_again(name):
    shape = model_shape(name)
    assert shape.name == name
    assert model_shape(shape.name) == shape


def test_free_numbers_spell_a_preset():
    free = model_shape(
        "transformer:layers=61,hidden=7168,heads=128,ffn=18432,gated=yes,vocab=129280,seq=4096,experts=256,topk=8,"
        "expert_ffn=2048,shared_experts=1,dense_first=3,mla=yes,mtp=1"
    )
    preset = model_shape("deepseek-v3")
    assert num_parameters(preset) - num_parameters(free) == 58 * 256, "the bias of the router has no key"
    assert free.flops_per_token() == preset.flops_per_token()


def test_changes_keep_heads_in_the_width():
    shape = model_shape("llama3-8b:hidden=2048,heads=16,seq=1024")
    assert (shape.head_size, shape.kv_heads, shape.sequence, shape.ffn) == (128, 8, 1024, 14336)
    assert model_shape(FREE).ffn == 4 * 64
    assert model_shape("mixtral-8x7b:experts=0,layers=1").experts is None


def test_blocks_with_experts():
    shape = model_shape(f"{FREE},experts=8,topk=2,expert_ffn=32,shared_experts=3,moe_every=2,dense_first=0")
    assert shape.experts == Experts(count=8, topk=2, ffn=32, shared_ffn=96, every=2)
    assert [shape.has_experts(block) for block in range(2)] == [False, True]


def test_experts_are_as_wide_as_the_feed_forward_part_unless_their_width_is_given():
    for ffn in ("", ",ffn=96"):
        shape = model_shape(f"{FREE},experts=8,topk=2,shared_experts=1,moe_every=2{ffn}")
        assert shape.experts == Experts(count=8, topk=2, ffn=shape.ffn, shared_ffn=shape.ffn, every=2)


def test_a_configuration_is_read_from_a_file_or_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16"}))
    for name in (f"hf:{tmp_path}/config.json", f"hf:{tmp_path}"):
        shape = model_shape(name)
        assert shape.name == name
        assert (shape.layers, shape.kv_heads, shape.head_size, shape.sequence) == (2, 4, 16, 8192)
    assert model_shape(tmp_path / "config.json").sequence == 8192
    assert model_shape(f"hf:{tmp_path}:layers=5,seq=77").layers == 5


FAMILIES = {
    "mistral": {"sliding_window": 4096},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "phi3": {},
    "gemma": {"head_dim": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 96,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 2},
    "gpt_neox": {},
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_configuration_of_each_family_is_read(tmp_path, model_type):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"model_type": model_type} | FAMILIES[model_type]))
    shape = model_shape(path)
    assert shape.is_tied == (model_type in ("qwen2", "gemma"))
    assert shape.has_query_bias == model_type.startswith("qwen2")
    assert shape.has_head_norms == model_type.startswith("qwen3")
    assert shape.has_layer_norm == shape.has_bias == (model_type == "gpt_neox")
    assert shape.sequence == (4096 if model_type == "mistral" else 8192)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "bert"}, "model_type: got 'bert', expected one of bloom, deepseek_v2, "),
        ({"model_type": "lama"}, "did you mean llama?"),
        ({"hidden_size": 0}, "hidden_size: got 0, expected at least 1"),
        ({"vocab_size": None}, "vocab_size: got None, expected an integer"),
        ({"attention_bias": True}, "attention_bias: got True, expected"),
        ({"num_key_value_heads": 3}, "config.json: num_key_value_heads: got 3, expected a divisor of num_attention"),
        ({"num_attention_heads": 6}, "config.json: num_attention_heads: got 6, expected a divisor of hidden_size=64"),
    ],
)
def test_a_faulty_configuration_is_refused_in_one_line(tmp_path, change, expected):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | change))
    with pytest.raises(ProfileError, match=re.escape(expected)):
        model_shape(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3-7b", "did you mean llama3-70b?"),
        ("nothing", "expected one of bloom-176b, "),
        ("hf:", "got no file, expected one"),
        ("hf:nowhere.json", "nowhere.json"),
        ("llama3-8b:layer=3", "did you mean layers? "),
        ("llama3-8b:layers=0", "layers: got 0, expected 1 to 10000; raise it"),
        ("llama3-8b:layers=20000", "layers: got 20000, expected 1 to 10000; lower it"),
        ("llama3-8b:layers=x", "layers: got 'x', expected a number (int)"),
        ("llama3-8b:gated=perhaps", "gated: got 'perhaps', expected true or false"),
        ("llama3-8b:kv_heads=5", ": kv_heads: got 5, expected a divisor of heads=32; try kv_heads=4"),
        ("llama3-8b:heads=30", ": heads: got 30, expected a divisor of hidden=4096; try heads=16, or append head_size"),
        ("llama3-8b:heads=30,head_size=128", ": heads: got 30, expected a multiple of kv_heads=8; try heads=32"),
        ("llama3-8b:hidden=4002", ": hidden: got 4002, expected a multiple of heads=32; try hidden=4032, or append"),
        ("mixtral-8x7b:topk=9", "topk: got 9, expected at most experts=8"),
        ("mixtral-8x7b:dense_first=32", "experts: got 8 for no block"),
        ("llama3-8b:topk=2", "topk: got this argument without experts"),
        ("llama3-8b:experts=8", "got no topk, expected a number together with experts; append topk=..."),
        ("llama3-8b:kv_rank=512", "kv_rank: got this argument without mla"),
        ("deepseek-v3:kv_heads=8", "kv_heads: got 8 with mla, expected heads=128"),
        ("transformer:layers=2", "got no hidden, heads, vocab, seq, expected a number for each"),
        (f"{FREE},gated=yes", "got no ffn, expected a number"),
        (f"{FREE},layers=3", "expected key=value with each key once"),
        ("gpt:width=30,heads=4", "width: got 30, expected a multiple of heads=4"),
    ],
)
def test_a_faulty_name_is_refused_in_one_line(name, expected):
    with pytest.raises(ProfileError, match=re.escape(expected)):
        model_shape(name)
