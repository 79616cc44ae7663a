"""Where the roofline of a GPU bends, worked out by hand."""

import pytest

from pipesched.profiles.costs import Kernel, LayerPass, Roofline, matrix_product

ROOFLINE = Roofline(flops_per_s=1000.0, bytes_per_s=10.0, link_bytes_per_s=2.0, num_gpus=4)


def test_an_operation_takes_as_long_as_the_longer_of_its_flops_and_its_bytes():
    """The two are level at 100 FLOPs per byte."""
    assert ROOFLINE.kernel_s(Kernel(flops=500, num_bytes=10)) == 1.0
    assert ROOFLINE.kernel_s(Kernel(flops=1000, num_bytes=10)) == 1.0
    assert ROOFLINE.kernel_s(Kernel(flops=1500, num_bytes=10)) == 1.5
    assert ROOFLINE.kernel_s(Kernel(flops=0, num_bytes=10)) == 1.0


def test_a_product_of_square_matrices_is_bound_by_bytes_until_they_are_large_enough():
    """n^3 multiplications move 3 n^2 numbers of two bytes: n / 3 FLOPs per byte, level at n = 300."""
    for size, seconds in ((150, 6 * 150**2 / 10), (300, 6 * 300**2 / 10), (600, 2 * 600**3 / 1000)):
        kernel = matrix_product(size, size, size, element_bytes=2)
        assert (kernel.flops, kernel.num_bytes) == (2 * size**3, 6 * size**2)
        assert ROOFLINE.kernel_s(kernel) == pytest.approx(seconds)


def test_a_pass_is_its_operations_and_all_reduces_one_after_the_other():
    """Of 16 bytes over 4 GPUs, 2 * 3/4 go over each link."""
    layer_pass = LayerPass((Kernel(2000, 1), Kernel(0, 30)), reduced_bytes=(16, 8))
    assert ROOFLINE.pass_s(layer_pass) == pytest.approx(2 + 3 + 16 * 1.5 / 2 + 8 * 1.5 / 2)
