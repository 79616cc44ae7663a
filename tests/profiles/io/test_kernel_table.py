"""Tables of measured kernels: our own, published ones, and bad ones."""

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.inside_stage import MeasuredKernel
from pipesched.profiles.io import (
    attention_operator,
    load_gpu,
    load_kernel_table,
    product_operator,
    save_json,
    save_kernel_table,
)

HEADER = "op,batch,m,n,k,seconds\n"
PUBLISHED = """gpu,op,peak_tflops,batch,m,n,k,layout,accumulate,out_dtype,efficiency
X,matmul,100.0,1,4096,1024,2048,NT,True,fp32,0.5
X,sdp_fwd,100.0,2,4096,64,8,qk192 v128 contiguous=True,,,0.9
X,sdp_bwd,100.0,1,4096,64,8,,,,0.45
X,group_matmul,100.0,8,512,1024,2048,fwd,False,bf16,0.2
X,memory:ce,,,,,,gbytes_per_s=8000.0,,,0.3
"""


def test_a_table_is_read_as_it_is_written(tmp_path):
    kernels = [
        MeasuredKernel(product_operator(2, 64, 128, 256, 4, 4), "float32", 1e-3),
        MeasuredKernel(product_operator(1, 4096, 8192, 1024), "bfloat16", 0.25),
        MeasuredKernel(attention_operator(1, 512, 8, 8, 64, 64), "float16", 2e-4),
        MeasuredKernel(attention_operator(3, 512, 8, 8, 64, 64, 4, backward=True), "float32", 5e-4),
    ]
    save_kernel_table(kernels, "a, b", tmp_path / "shapes.csv")
    table = load_kernel_table(tmp_path / "shapes.csv")
    assert table.ignored == 0
    assert list(table.kernels) == kernels


def test_a_published_table_has_shares_of_the_peak(tmp_path):
    (tmp_path / "published.csv").write_text(PUBLISHED)
    (product, forward, backward), ignored, devices = load_kernel_table(tmp_path / "published.csv")
    assert (ignored, devices) == (2, ("X",))
    assert product.precision == "bfloat16"
    assert product.seconds == pytest.approx(2 * 4096 * 1024 * 2048 / 50e12)
    assert product.operator.num_bytes == 2 * 2048 * (4096 + 1024) + 2 * 4 * 4096 * 1024
    assert forward.operator.flops == 2 * 64 * 4096**2 * (192 + 128)
    assert forward.seconds == pytest.approx(2 * forward.operator.flops / 90e12)
    assert backward.operator.flops == 5 * 64 * 4096**2 * (128 + 128) // 2
    assert backward.seconds == pytest.approx(2 * backward.operator.flops / 45e12)


ROW = "matmul,1,64,64,64,1e-4\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "row 1: got no column op, batch, m, n, k, seconds, expected op, batch, m, n, k, seconds"),
        ("op,batch,m,n,k\n" + ROW, "row 1: got no column seconds"),
        ("op,batch,m,n,k,efficiency\n" + ROW, "row 1: got no column seconds"),
        (HEADER + ROW + "matmul,1,64,64,64,-1e-4\n", "row 3, column seconds: got '-1e-4', expected a number above 0"),
        (HEADER + ROW + "matmul,1,64,x,64,1\n", "row 3, column n: got 'x', expected a whole number from 1"),
        (HEADER + ROW + f"matmul,1,64,64,{10**400},1\n", "row 3, column k: got '1000"),
        (HEADER + ROW + "matmul,1,64\n", "row 3, column n: got '', expected"),
        (HEADER + ROW + 'matmul,"1\n', "expected comma-separated values; check the quotes"),
        ("precision," + HEADER + "int8," + ROW + "int8," + ROW, "row 2, column precision: got 'int8', expected one"),
        (PUBLISHED.replace("0.5\n", "-0.5\n"), "row 2, column efficiency: got '-0.5', expected a number above 0"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "shapes.csv").write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_kernel_table(tmp_path / "shapes.csv")
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'shapes.csv'}: ")


def test_a_gpu_is_read_as_it_is_written(tmp_path):
    for name in ("h100", "v100", "mi300x"):
        save_json(load_gpu(name), tmp_path / f"{name}.json")
        assert load_gpu(tmp_path / f"{name}.json") == load_gpu(name)
