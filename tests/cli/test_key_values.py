"""Numbers, counts and sizes in options: a refusal suggests the value that was probably meant."""

import pytest

from pipesched.cli.errors import InputError
from pipesched.cli.options.plain_reading import plain_value
from pipesched.cli.options.values import amounts, counts, number, parse_bytes, read_integer


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("f", "0.01", 0.01),
        ("f", "1ms", 0.001),
        ("b", "2 s", 2.0),
        ("latency_s", "10us", 1e-05),
        ("latency_s", "2.5e1ns", 2.5e-08),
        ("step_s", "1.5h", 5400.0),
        ("step_s", "2d", 172800.0),
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
    ("name", "kind", "value", "plain"),
    [
        ("timeout_s", "<float range>", "1min", "60"),
        ("time_limit_s", "<float range>", "500ms", "0.5"),
        ("jitter", "<float range>", "25%", "0.25"),
        ("convert_bytes_per_s", "<float range>", "10GB/s", "10000000000"),
        ("jitter", "<float range>", "5ms", "5ms"),
        ("repeats", "<int range>", "5%", "5%"),
        ("dtype", "<float32|bfloat16>", "BF16", "bfloat16"),
        ("dtype", "<float32|bfloat16>", "fp16", "fp16"),
        ("compression", "half", "half", "half"),
    ],
)
def test_an_option_takes_a_value_as_people_write_it(name, kind, value, plain):
    assert plain_value(value, name, kind) == plain


def tried(error):
    """Return what a refusal ends with: the value to try."""
    return str(error.value).rpartition(" ")[2]


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("bandwidth_bytes_per_s", "25Gbit", 3.125e9),
        ("bandwidth_bytes_per_s", "10GB", 1e10),
        ("saved_bytes", "8Gbit", 1e9),
        ("f", "50%", 0.5),
        ("f", "GB", 1.0),
        ("f", "1GB", 1.0),
        ("saved_bytes", "5ms", 1.0),
        ("f", "-1ms", 1.0),
        ("f", "inf", 1.0),
        ("f", "1_0", 1.0),
        ("f", "1\uff10", 1.0),
    ],
)
def test_a_unit_that_does_not_fit_is_answered_with_what_may_be_meant(key, value, meant):
    with pytest.raises(InputError) as refused:
        number(value, f"--x: {key}")
    name, _, hint = tried(refused).partition("=")
    assert (name, number(hint, f"--x: {key}")) == (key, meant)


@pytest.mark.parametrize(("value", "meant"), [("2.0", 2), ("1e3", 1000), ("2.5", 1), ("two", 1), ("inf", 1)])
def test_a_whole_number_in_another_form_is_answered_as_it_is_written(value, meant):
    with pytest.raises(InputError, match=r"^--x: ") as refused:
        read_integer(value, "--x")
    assert read_integer(tried(refused), "--x") == meant


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8:64:x2", (8, 16, 32, 64)),
        ("4:16:4", (4, 8, 12, 16)),
        ("3:5", (3, 4, 5)),
        ("8:50:x2,1,2-3", (1, 2, 3, 8, 16, 32)),
    ],
)
def test_counts_are_lists_and_ranges(text, numbers):
    assert counts(text, "-m", 1) == numbers


@pytest.mark.parametrize("text", ["8:32:y2", "8:32:2x", "32:8", "8:32:x1", "1:2:3:4"])
def test_a_range_that_does_not_rise_is_refused_with_ranges_that_do(text):
    with pytest.raises(InputError, match=f"-m: got '{text}', expected a range that rises, .* try 8:512:x2 or 4:16:4"):
        counts(text, "-m", 1)


def test_amounts_have_units_and_ranges_their_ends():
    assert amounts("1e9,10GB/s", "--link: bandwidth_bytes_per_s") == (1e9, 1e10)
    assert amounts("0.1:0.3:0.1", "--set: x") == pytest.approx((0.1, 0.2, 0.3))
    assert amounts("1MB/s:1GB/s:x10", "--link: bandwidth_bytes_per_s") == pytest.approx((1e6, 1e7, 1e8, 1e9))


def test_counts_have_a_limit():
    with pytest.raises(InputError, match=r"^-n: "):
        counts("1-300", "-n", 1, 256)


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


def test_a_link_is_said_in_the_same_words_everywhere(pipesched):
    link = [f"--link {words}" for words in ("latency=1ms,bandwidth=1GB/s", "latency_s=0.001,bandwidth_bytes_per_s=1e9")]
    for command in ("simulate", "sweep --workers 1"):
        line = f"{command} -s 1f1b -p 2 -m 4 --uniform f=10ms,b=20ms,output_bytes=1e6 --json"
        short, long = (pipesched(f"{line} {words}") for words in link)
        assert short.code == 0
        assert short.out == long.out


def test_bytes_are_whole(pipesched):
    for text, code in {"1500.5": 2, "1501": 0, "1e30": 2, "1e18": 0}.items():
        assert pipesched(f"simulate -s gpipe -p 2 -m 2 --uniform f=1,b=2,saved_bytes={text}").code == code
