import re
import warnings

import pytest

from pipesched.schedules.formats import FileWarning
from pipesched.schedules.formats.torch_csv import read_csv_text
from tests.schedules.builder_rules import refused

FULL = "0F0,0F1,,0BW0,,0BW1\n,1F0,1BW0,1F1,1BW1\n"
HALVES = "0F0,0F1,,0B0,0W0,0B1,0W1\n,1F0,1B0,1F1,1B1,1W0,1W1\n"
MIXED = "0F0,0F1,,0B0,0W0,0B1,0W1\n,1F0,1BW0,1F1,1BW1\n"
COMMS = (
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0W0,0RECV_B1,0BW1,0RESHARD\n"
    "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1BW1,1SEND_B1,1W0,1RESHARD\n"
)


def read(text):
    """Return the rows of a file without its steps, and what its reader warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule = read_csv_text(text, "s.csv", steps=False)
    return [[str(op) for op in row] for row in schedule.ops], [str(warning.message) for warning in caught]


def todays(text):
    """Return the rows of a file of 2024 in the words of today."""
    rows = [[cell for cell in line.split(",") if cell] for line in text.splitlines()]
    today = {"BW": "B", "B": "I"}
    return [[re.sub(r"(?<=[0-9])(BW|B)(?=[0-9])", lambda match: today[match[0]], cell) for cell in row] for row in rows]


@pytest.mark.parametrize("text", [FULL, HALVES, MIXED, COMMS])
def test_a_file_of_2024_is_read_in_the_words_of_today_and_says_so(text):
    rows, said = read(text)
    assert rows == todays(text)
    assert len(said) == 1
    assert "s.csv: read as PyTorch's CSV of 2024" in said[0]


@pytest.mark.parametrize("text", ["0F0,0B0\n", "0F0,0I0,0W0\n", "0F0,0F1,0B0,0I1,0W1\n"])
def test_a_file_that_is_the_same_today_is_read_without_a_word(text):
    rows, said = read(text)
    assert (rows, said) == ([text.strip().split(",")], [])


@pytest.mark.parametrize("kind", ["ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleInterleaved1F1B"])
def test_pytorchs_orders_in_the_words_of_2024_are_read_as_the_same_orders(kind):
    from tests.schedules.torch_schedules import built, loop, vee

    order = built(kind, 4, 8, vee(4) if "ZBV" in kind else loop(4, 2))
    older = {"B": "BW", "I": "B"}
    text = "\n".join(
        ",".join(re.sub(r"(?<=[0-9])[BI](?=[0-9])", lambda match: older[match[0]], cell) for cell in row)
        for row in order
    )
    rows, said = read(text)
    assert rows == order
    assert len(said) == 1


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (MIXED.replace("1BW1", "1I1,1W1"), "row 2, cell 5", "got 1I1 in a file with BW"),
        (COMMS.replace("1RESHARD", "1REDUCE_GRAD"), "row 2, cell 11", "got 1REDUCE_GRAD in a file with BW"),
        (FULL.replace("1BW0,1F1", "(1F1;1B0)OVERLAP_F_B"), "row 2, cell 3", "OVERLAP_F_B in a file with BW"),
        (MIXED.replace("0B1,0W1", "0B1"), "row 1, cell 6", "got 0B1 without 0W1"),
        (HALVES.replace("1B1", "1BW1"), "row 2, stage 1, micro-batch 1", "B beside I or W"),
        (FULL.replace("0BW1", "0BW1,0BW1"), "row 1, cell 7", "got 0B1 again"),
        (FULL.replace("0BW1", "0BW01"), "row 1, cell 6", "without leading zeros"),
        (FULL.replace("0BW1", "0BW"), "row 1, cell 6", "got '0BW'"),
        (COMMS.replace("0SEND_F1,0RECV_B0", "0SEND_F1_0RECV_B0"), "row 1, cell 5", "try 0SEND_F1,0RECV_B0"),
    ],
)
def test_what_neither_dialect_says_is_refused_with_its_place(text, place, words):
    with refused(f"{place}: got", words):
        read(text)


def test_the_warning_is_one_of_files_and_names_a_file_in_one_line():
    with pytest.warns(FileWarning, match="a b.csv: read as") as caught:
        read_csv_text(FULL, "a\nb.csv")
    assert len(caught) == 1
