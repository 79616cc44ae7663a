"""What the reports of the benchmarks share."""

from collections.abc import Iterator

import pytest

from benchmarks.report import arguments_of, provenance, show


def test_a_report_is_shown_line_by_line_and_written_whole(tmp_path, capsys):
    shown = []

    def lines() -> Iterator[str]:
        yield "# Head"
        shown.append(capsys.readouterr().out)
        yield "body"

    show(lines(), tmp_path / "report.md")
    assert shown == ["# Head\n"]
    assert capsys.readouterr().out == "body\n"
    assert (tmp_path / "report.md").read_text() == "# Head\nbody\n"


def test_a_report_takes_the_place_of_its_own_part_of_a_page_and_leaves_the_others(tmp_path):
    page = tmp_path / "report.md"
    page.write_text("# Digits\n\nold\n\n## Digits in detail\n\nold\n\n# By hand\n\nkept # as it is\n")
    show(["# Digits", "", "new"], page)
    assert page.read_text() == "# Digits\n\nnew\n\n# By hand\n\nkept # as it is\n"
    show(["# Text", "", "first"], page)
    assert page.read_text() == "# Digits\n\nnew\n\n# By hand\n\nkept # as it is\n\n# Text\n\nfirst\n"


def test_what_made_the_numbers_is_a_command_a_date_a_version_and_a_machine():
    command, machine = provenance("plans.py --runs 5", 0.123, "gloo")
    assert command.startswith("`python benchmarks/plans.py --runs 5`, 20")
    assert ", torch " in command
    assert machine.endswith(" cores, load before 0.12, gloo.")


def test_every_report_can_be_written(tmp_path, capsys):
    parser = arguments_of("Head.\n\nMore.")
    assert parser.description == "Head."
    assert parser.parse_args(["--out", str(tmp_path)]).out == tmp_path
    with pytest.raises(SystemExit):
        parser.parse_args(["--elsewhere"])
