"""Numbers in options: what is refused is answered with what was meant."""

import pytest

from pipesched.cli.errors import InputError
from pipesched.cli.options.key_values import number, read_integer


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("f", "0.01", 0.01),
        ("f", "1ms", 0.001),
        ("b", "2 s", 2.0),
        ("latency_s", "10us", 1e-05),
        ("latency_s", "2.5e1ns", 2.5e-08),
        ("step_s", "1min", 60.0),
        ("overlap", "50%", 0.5),
        ("saved_bytes", "1.5GB", 1.5e9),
        ("weight_bytes", "2MiB", 2.0 * 2**20),
        ("bandwidth_bytes_per_s", "10GB/s", 1e10),
        ("bandwidth_bytes_per_s", "25Gbit/s", 3.125e9),
        ("bandwidth_bytes_per_s", "400Gbps", 5e10),
        ("bandwidth_bytes_per_s", "8kbps", 1000.0),
    ],
)
def test_a_value_is_read_with_a_unit_that_fits_its_key(key, value, meant):
    assert number(value, f"--x: {key}") == pytest.approx(meant)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("bandwidth_bytes_per_s", "25Gbit", "bandwidth_bytes_per_s=3125000000"),
        ("bandwidth_bytes_per_s", "10GB", "bandwidth_bytes_per_s=10000000000"),
        ("saved_bytes", "8Gbit", "saved_bytes=1000000000"),
        ("f", "50%", "f=0.5"),
        ("f", "GB", "f=1"),
        ("f", "1GB", "f=1"),
        ("saved_bytes", "5ms", "saved_bytes=1"),
        ("f", "-1ms", "f=1"),
        ("f", "inf", "f=1"),
    ],
)
def test_a_unit_that_does_not_fit_is_answered_with_what_may_be_meant(key, value, hint):
    with pytest.raises(InputError) as refused:
        number(value, f"--x: {key}")
    assert str(refused.value).endswith(f"; try {hint}")
    assert number(hint.partition("=")[2], "--x") >= 0


@pytest.mark.parametrize(("value", "hint"), [("2.0", "2"), ("1e3", "1000"), ("2.5", "1"), ("two", "1"), ("inf", "1")])
def test_a_whole_number_in_another_form_is_answered_as_it_is_written(value, hint):
    with pytest.raises(InputError, match=rf"^--x: .*; try {hint}$"):
        read_integer(value, "--x")
    assert read_integer(hint, "--x") == int(hint)


def test_bytes_that_are_not_whole_are_answered_with_the_next_that_are(pipesched):
    line = "simulate -s gpipe -p 2 -m 2 --uniform f=1,b=2,saved_bytes="
    for wrong, hint in (("1500.5", "1501"), ("1e30", "1e18")):
        assert pipesched(line + wrong).err.endswith(f"; try saved_bytes={hint}\n")
        assert pipesched(line + hint).code == 0
