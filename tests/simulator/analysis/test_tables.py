import csv
import io

import pytest

from pipesched.simulator.analysis import readable_change, to_csv, to_markdown

ROWS = [{"name": "a|b", "makespan_s": 1.5, "peak": None}, {"name": "c", "makespan_s": 123456.5, "peak": 7}]


def test_markdown_aligns_numbers_and_keeps_bars_in_names():
    assert to_markdown(ROWS).splitlines() == [
        "| name | makespan_s | peak |",
        "| ---- | ---------: | ---: |",
        "| a\\|b |        1.5 |      |",
        "| c    |     123456 |    7 |",
    ]


def test_markdown_says_yes_and_no():
    assert to_markdown([{"fits": True}, {"fits": False}, {"fits": None}]).splitlines()[2:] == [
        "|  yes |",
        "|   no |",
        "|      |",
    ]


def test_csv_keeps_every_digit():
    rows = list(csv.DictReader(io.StringIO(to_csv([{"x": 0.1 + 0.2, "y": None}]))))
    assert rows == [{"x": "0.30000000000000004", "y": ""}]


@pytest.mark.parametrize(
    ("share", "text"), [(-1e-16, "+0.0%"), (-0.0004, "+0.0%"), (-0.0006, "-0.1%"), (0.25, "+25.0%")]
)
def test_a_change_that_rounds_to_nothing_has_no_minus(share, text):
    assert readable_change(share) == text
