"""PyTorch's CSV through the command line: there and back in two commands."""

import pytest

from pipesched.schedules.formats import read_schedule
from tests.schedules.formats.csv_support import halves

SAYABLE, UNSAYABLE = halves(2, 4)


@pytest.mark.parametrize(
    "line",
    [
        "check -f older.csv",
        "simulate -f older.csv --uniform f=1,i=1,w=1 --json",
        "compare older.csv,1f1b -p 2 -m 2 --uniform f=1,i=1,w=1",
    ],
)
def test_every_command_says_that_a_file_is_of_2024(pipesched, folder, line):
    (folder / "older.csv").write_text("0F0,0F1,0B0,0W0,0B1,0W1\n1F0,1BW0,1F1,1BW1\n")
    answer = pipesched(line)
    assert answer.code == 0
    assert answer.err == (
        "pipesched: older.csv: read as PyTorch's CSV of 2024: BW is a full backward, B and W are its halves "
        "(today B, I and W)\n"
    )


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_a_csv_cannot_say_is_refused_with_the_reason_and_the_json_that_it_offers_works(pipesched, folder, name):
    for form in ("csv", "csv-comms"):
        answer = pipesched(f"show -s {name} -p 2 -m 4 --format {form} --out out.csv")
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert "--format" in answer.err
        assert not (folder / "out.csv").exists()
    assert pipesched(f"show -s {name} -p 2 -m 4 --format json --out out.json") == (0, "", "")
    assert read_schedule(folder / "out.json").name == name


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        ("show -s gpipe -p 2 -m 1 --out a.csv", "0F0,0B0"),
        ("show -f mine.csv --out a.csv", "0F0,0F1"),
        ("show -s gpipe -p 2 -m 1 --recompute all --out a.json", '{\n  "format": "pipesched.schedule"'),
        ("show -s gpipe -p 2 -m 1 --out a.txt", "rank 0  0F0"),
        ("show -s gpipe -p 2 -m 1 --out a.csv --format csv-comms", "0UNSHARD,0F0,0SEND_F0"),
        ("show -s gpipe -p 2 -m 1 --out a.csv --format grid", "rank 0  0F0"),
    ],
)
def test_without_a_format_the_suffix_of_the_file_says_it(pipesched, folder, line, begins):
    assert pipesched(line) == (0, "", "")
    written = next(path for path in folder.glob("a.*"))
    assert written.read_text().startswith(begins)
