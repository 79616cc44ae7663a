"""Tables for people: equal rows are one."""

import pytest

from pipesched.workflows import with_equal_devices


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ("aaaa", ["0-3"]),
        ("abab", ["0", "1", "2", "3"]),
        ("ababab", ["0, 2 .. 4", "1, 3 .. 5"]),
        ("aab", ["0-1", "2"]),
        ("abcabcabcabc", ["0, 3 .. 9", "1, 4 .. 10", "2, 5 .. 11"]),
        ("aabaa", ["0", "1", "2", "3", "4"]),
        ("a", ["0"]),
    ],
)
def test_equal_devices_are_one_row_where_a_few_words_say_which(cells, names):
    rows = with_equal_devices({"device": str(number), "busy": cell} for number, cell in enumerate(cells))
    assert [row["device"] for row in rows] == names
    assert [row["busy"] for row in rows] == [cells[int(name.split(",")[0].split("-")[0])] for name in names]
