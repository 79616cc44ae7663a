"""`fit_kernels`: a curve comes back from the seconds that it predicts, whatever the search starts from."""

from dataclasses import replace
from statistics import median

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.inside_stage import MeasuredKernel, fit_kernels, kernel_errors, kernel_s
from pipesched.profiles.io import attention_operator, load_gpu, load_kernel_curve, product_operator

A100, B200 = load_gpu("a100"), load_gpu("b200")
SHAPES = [
    (rows, columns, inner)
    for rows in (256, 1024, 4096)
    for columns in (512, 1536, 4096, 12288)
    for inner in (256, 1024, 4096)
]


def kernels_of(gpu, factor=lambda index: 1.0):
    """Return products and attention with the seconds that a GPU predicts when they run alone."""
    products = [product_operator(1, *shape) for shape in SHAPES]
    attention = [
        attention_operator(1, tokens, heads, heads, 128, 128, backward=backward)
        for tokens in (1024, 4096)
        for backward in (False, True)
        for heads in (4, 16, 64)
    ]
    alone = replace(gpu, sustained=1.0)
    return [
        MeasuredKernel(operator, "bfloat16", kernel_s(operator, alone, "bfloat16") * factor(index))
        for index, operator in enumerate([*products, *attention])
    ]


def sizes_of(errors):
    return sorted(map(abs, errors))


def test_a_curve_stays_where_it_fits():
    fitted = fit_kernels(kernels_of(A100), A100)
    assert fitted == A100


@pytest.mark.parametrize(("truth", "start"), [(A100, "b200"), (B200, "a100")])
def test_a_curve_comes_back_from_half_of_its_kernels(truth, start):
    other = replace(truth, kernels=load_kernel_curve(start))
    kernels = kernels_of(truth)
    before = sizes_of(kernel_errors(kernels[1::2], other))
    fitted = fit_kernels(kernels[::2], other)
    after = sizes_of(kernel_errors(kernels[1::2], fitted))
    assert median(before) > 0.1
    assert median(after) < 0.02
    assert after[-1] < 0.1
    assert fit_kernels(kernels[::2], other) == fitted
    assert replace(fitted, kernels=other.kernels, efficiency=other.efficiency) == other


def test_a_few_odd_kernels_move_the_curve_little():
    odd = kernels_of(A100, lambda index: 3.0 if index % 9 == 0 else 1.0)
    fitted = fit_kernels(odd, replace(A100, kernels=load_kernel_curve("b200")))
    assert median(sizes_of(kernel_errors(kernels_of(A100), fitted))) < 0.03


def test_without_attention_its_shares_stay():
    products = [kernel for kernel in kernels_of(B200) if kernel.operator.kind == "matmul"]
    other = replace(B200, kernels=load_kernel_curve("a100"))
    fitted = fit_kernels(products, other)
    assert fitted.kernels != other.kernels
    for name in ("attention", "attention_backward", "attention_tail", "permute", "expert_s", "flash_1"):
        assert getattr(fitted.kernels, name) == getattr(other.kernels, name)


def test_a_product_faster_than_the_sheet_says_raises_the_share_of_the_peak():
    kernels = kernels_of(replace(A100, efficiency=0.95))
    reached = max(kernel.operator.flops / kernel.seconds / 312e12 for kernel in kernels if kernel.operator.inner)
    slow = replace(A100, efficiency=0.5)
    fitted = fit_kernels(kernels, slow)
    assert fitted.efficiency == reached > slow.efficiency
    assert median(sizes_of(kernel_errors(kernels, fitted))) < 0.02


@pytest.mark.parametrize(
    ("kernels", "gpu", "message"),
    [
        (kernels_of(A100)[:7], A100, "kernels: got 7 products of matrices, expected at least 8; measure more"),
        (
            kernels_of(A100),
            replace(A100, kernels=None),
            "gpu a100: got no field kernels, expected the name of a curve to start from",
        ),
        (
            kernels_of(A100, lambda _: 0.2),
            A100,
            r"kernels: got 1\.\d+ of the bfloat16 peak of a100 for m=\d+, n=\d+, k=\d+, expected at most 1; correct",
        ),
        (
            [replace(kernel, precision="float8") for kernel in kernels_of(A100)],
            A100,
            "gpu a100: flops_per_s: got no float8, expected one of bfloat16, float16, float32",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(kernels, gpu, message):
    with pytest.raises(ProfileError, match=message):
        fit_kernels(kernels, gpu)
