import os
import stat

import pytest

from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.formats.files import Faults, read_text, whole_file, write_text
from pipesched.schedules.formats.json_document import format_of, load_json
from tests.schedules.builder_rules import refused_file


def test_text_comes_back_with_its_line_ends(tmp_path):
    path = tmp_path / "a.csv"
    write_text(path, "a\r\nb\né")
    assert path.read_bytes() == "a\r\nb\né".encode()
    assert read_text(path) == "a\r\nb\né"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('{"format": "pipesched.timeline"}', "pipesched.timeline"),
        ('\ufeff{"name": "a",\n "format" : "pipesched-plan", "batch_size"', "pipesched-plan"),
        ('{"name": "\\"format\\": \\"pipesched-plan\\""}', None),
        ('{"name": "pipesched-plan", "format": "other"}', None),
        ("", None),
    ],
)
def test_a_file_is_what_it_says_that_it_is(tmp_path, text, form):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    assert format_of(tmp_path / "a.json") == form


def test_what_cannot_be_read_says_nothing(tmp_path):
    assert format_of(tmp_path) is None
    assert format_of(tmp_path / "missing.json") is None
    assert format_of("a\0b") is None


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfab\xef\xbb\xbf")
    assert read_text(path) == "ab\ufeff"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "got an empty file"),
        (b" \r\n", "got an empty file"),
        (b"ab\xff", "line 1, byte 3: got 0xff, expected UTF-8"),
        (b"a\r\n\nb\xff", "line 3, byte 2: got 0xff, expected UTF-8"),
        (b"ab\0", "line 1, byte 3: got NUL"),
        (b"\xef\xbb\xbf", "got an empty file"),
        (b"\xef\xbb\xbfab\xff", "line 1, byte 3: got 0xff, expected UTF-8"),
        (b"x" * 11, "got more than 10 bytes"),
    ],
)
def test_a_file_that_holds_no_text_is_refused(tmp_path, data, words):
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    with refused_file(f"{path}: {words}"):
        read_text(path, limit=10)


@pytest.mark.parametrize("name", ["none.csv", ".", "none/a.csv", "a\0b", "a" * 300, "two\nlines"])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path, name):
    with refused_file("", "got"):
        read_text(f"{tmp_path}/{name}")


def test_writing_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "long before")
    write_text(path, "now")
    assert path.read_text() == "now"
    assert os.listdir(tmp_path) == ["a.json"]  # noqa: PTH208 - the names are what is tested
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_writing_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "real" / "a.csv")
    write_text(tmp_path / "link.csv", "x")
    assert (tmp_path / "real" / "a.csv").read_text() == "x"
    assert (tmp_path / "link.csv").is_symlink()


@pytest.mark.parametrize("name", ["none/a.csv", ".", "a\0b", "a" * 300])
def test_what_cannot_be_written_is_refused_and_nothing_is_written(tmp_path, name):
    with refused_file(""):
        write_text(f"{tmp_path}/{name}", "x")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.csv"
    write_text(path, "old")
    with pytest.raises(ScheduleError):
        write_text(path, "\ud800")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_a_device_is_not_replaced_by_a_file():
    with pytest.raises(ScheduleError, match="not a regular file"):
        write_text("/dev/null", "x")


def test_a_folder_is_made_where_that_is_asked_for(tmp_path):
    with whole_file(tmp_path / "new" / "a.txt", makes_folder=True) as path:
        path.write_text("x")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_the_folder_around_a_folder_that_is_made_must_be_there(tmp_path):
    with (
        pytest.raises(ScheduleError, match=r"a\.txt: got no folder '.*none', expected one; try creating it first"),
        whole_file(tmp_path / "none" / "new" / "a.txt", makes_folder=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_faults_are_raised_once_with_three_shown():
    faults = Faults("a\nb.csv")
    faults.settle()
    assert not faults
    for number in range(5):
        faults.add(f"row {number}" if number else "", f"got {number}, expected more; try 9")
    assert faults
    with pytest.raises(ScheduleError) as caught:
        faults.settle()
    places = ("", "row 1: ", "row 2: ")
    shown_faults = [f"{place}got {number}, expected more; try 9; " for number, place in enumerate(places)]
    assert str(caught.value) == "a b.csv: " + "".join(shown_faults) + "and 2 more"


@pytest.mark.parametrize("value", ["a" * 10**6, ["a" * 10**6] * 3, "\n\u2028\x85\ud800", {"a": [1] * 1000}, None])
def test_a_quoted_value_is_short_and_in_one_line(value):
    assert len(shown(value)) <= 60
    assert len(shown(value).splitlines()) == 1
    shown(value).encode()


def test_json_of_every_type_reads_as_in_json():
    text = '{"a": [1, -2, 0.1, 1e3, true, null, "é"], "b": {}}'
    assert load_json(text, "a.json") == {"a": [1, -2, 0.1, 1000.0, True, None, "é"], "b": {}}


@pytest.mark.parametrize("nested", ["[" * 100 + "]" * 100, '{"a":' * 100 + "1" + "}" * 100])
def test_json_may_be_a_hundred_levels_deep_and_no_deeper(nested):
    assert load_json(nested, "a.json")
    for text in (f"[{nested}]", f'{{"a": 1, "b": [2, {nested}]}}', "[" * 100_000):
        with refused_file("a.json: got lists nested too deep, expected at most 100 levels"):
            load_json(text, "a.json")


def test_a_pipe_that_nobody_writes_to_and_a_device_are_refused_and_one_with_a_writer_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("pipesched.schedules.formats.files.WRITER_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    for path, got in ((tmp_path / "pipe", "a pipe without a writer"), ("/dev/zero", "a device")):
        with pytest.raises(ScheduleError, match=f"{path}: got {got}, expected a file that can be read"):
            read_text(path)
    reading, writing = os.pipe()  # as the shell's <(command) has it
    os.write(writing, b"0F0,0B0")
    os.close(writing)
    assert read_text(f"/dev/fd/{reading}") == "0F0,0B0"
    os.close(reading)
