"""Products in float8: faster linear layers, kernels that quantize their inputs, and the same logits."""

from dataclasses import replace

import pytest

from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage.kernel_time import kernel_s
from pipesched.profiles.inside_stage.layer_operators import LayerMaker
from pipesched.profiles.inside_stage.operators import Operator
from pipesched.profiles.io import load_gpu, model_shape

DENSE, SPARSE = model_shape("llama3-8b"), model_shape("mixtral-8x7b")
FLOAT8 = LayerSharding(precision="float8")


def all_operators(layer):
    return [*layer.forward.operators, *layer.backward_input.operators, *layer.backward_weight.operators]


def test_inputs_and_output_gradients_are_read_once_and_written_by_rows_and_by_columns():
    layer, plain = LayerMaker(DENSE, 1, FLOAT8).block(), LayerMaker(DENSE, 1, LayerSharding()).block()
    tokens, hidden, ffn = DENSE.sequence, DENSE.hidden, DENSE.ffn
    qkv = hidden + 2 * hidden // 4
    casts = {
        name: {op.name: op.num_bytes for op in getattr(layer, name).operators if op.name.endswith(" cast")}
        for name in ("forward", "backward_input", "backward_weight")
    }
    numbers = {"projection cast": hidden, "down cast": ffn}
    back = {"qkv cast": qkv, "projection cast": hidden, "up cast": 2 * ffn, "down cast": hidden}
    assert casts["forward"] == {name: 4 * tokens * width for name, width in numbers.items()}
    assert casts["backward_input"] == {name: 4 * tokens * width for name, width in back.items()}
    assert casts["backward_weight"] == {}
    assert layer.saved_bytes == plain.saved_bytes
    names = [op.name for op in layer.backward_input.operators]
    assert names.index("down cast") + 1 == names.index("down")


def test_products_read_elements_of_one_byte_and_write_two():
    tokens, hidden, ffn = DENSE.sequence, DENSE.hidden, DENSE.ffn
    layer = LayerMaker(DENSE, 1, FLOAT8).block()
    (down,) = [op for op in layer.forward.operators if op.name == "down"]
    (back,) = [op for op in layer.backward_input.operators if op.name == "down"]
    (weight,) = [op for op in layer.backward_weight.operators if op.name == "down"]
    assert down.num_bytes == tokens * ffn + ffn * hidden + 2 * tokens * hidden
    assert back.num_bytes == tokens * hidden + ffn * hidden + 2 * tokens * ffn
    assert weight.num_bytes == tokens * ffn + tokens * hidden + 8 * ffn * hidden


@pytest.mark.parametrize(
    "layer", [LayerMaker(DENSE, 1, FLOAT8).head(), LayerMaker(SPARSE, 1, FLOAT8).block(has_experts=True)]
)
def test_logits_and_router_are_not_quantized(layer):
    products = [op for op in all_operators(layer) if op.name in ("logits", "router")]
    assert len(products) == 3
    assert not any(op.is_linear for op in products)
    assert not any(op.name in ("logits cast", "router cast") for op in all_operators(layer))


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "gb200", "mi300x"])
def test_a_large_product_is_faster_but_less_than_twice(name):
    gpu = load_gpu(name)
    product = Operator("up", "matmul", 2 * 8192**3, 6 * 8192**2, 0, 1, 8192, 8192, 8192, is_linear=True)
    small = replace(product, num_bytes=4 * 8192**2)
    ratio = kernel_s(product, gpu, "bfloat16") / kernel_s(small, gpu, "float8")
    assert 1.5 < ratio < 2
    logits = replace(product, is_linear=False)
    assert kernel_s(logits, gpu, "float8") == kernel_s(product, gpu, "bfloat16")
