import pytest

from pipesched.cli.errors import InputError
from pipesched.cli.options.values import parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("512B", 512),
        ("16GB", 16 * 10**9),
        ("16GiB", 16 * 2**30),
        ("16 gib", 16 * 2**30),
        ("1.5kB", 1500),
        ("2MiB", 2 * 2**20),
        ("1e9", 10**9),
        ("1.6e+1GB", 16 * 10**9),
        ("0.5TB", 5 * 10**11),
    ],
)
def test_a_size_is_read_as_people_write_it(text, expected):
    assert parse_bytes(text, "--x") == expected


@pytest.mark.parametrize("text", ["", "GB", "16XB", "0", "0GB", "-1", "nan", "1e999", "1..2", "1,5GB", "1GB 2", "9e30"])
def test_what_is_no_size_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"^--x: "):
        parse_bytes(text, "--x")


@pytest.mark.parametrize(("text", "advice"), [("12Gb", "12GB"), ("1.5 Mib", "1.5MiB"), ("64Kb", "64KB")])
def test_bits_are_no_size_in_bytes(text, advice):
    with pytest.raises(InputError, match=f"--x: got '{text}', which are bits, expected bytes; try {advice} for bytes"):
        parse_bytes(text, "--x")
