"""The page of the five papers: its verdicts by hand, the names of its figures, and refusals of the command."""

import sys

import pytest


@pytest.fixture
def papers(rows):
    """Return the module of the command."""
    return rows("papers")


@pytest.fixture
def figure(rows):
    """Return the module of figures and verdicts."""
    return rows("paper_rows.figure")


@pytest.mark.parametrize(
    ("results", "published", "within", "verdict"),
    [
        ([1.0], [1.0], 0.0, "agrees"),
        ([0.91, 2.19], [1.0, 2.0], 0.1, "agrees"),
        ([0.89, 2.0], [1.0, 2.0], 0.1, "shape agrees"),  # 1 below 2 in both
        ([3.0, 2.0], [1.0, 2.0], 0.1, "differs"),
        ([5.0, 4.0], [1.05, 1.0], 0.1, "differs"),  # numbers of the paper within 10 % have no order
        ([2.0, 2.1, 9.0], [1.05, 1.0, 3.0], 0.1, "shape agrees"),
        ([7.0, 7.0], [1.0, 2.0], 0.1, "differs"),  # equal results have no order
        ([2.0], [1.0], 0.1, "differs"),  # one number has no shape
        ([-1.05], [-1.0], 0.1, "agrees"),
    ],
)
def test_a_verdict_is_within_the_tolerance_or_has_the_papers_order(figure, results, published, within, verdict):
    assert figure.verdict_of(results, published, within) == verdict


def test_as_many_results_as_numbers_are_needed(figure):
    with pytest.raises(ValueError, match="zip"):
        figure.verdict_of([1.0], [1.0, 2.0], 0.1)


@pytest.mark.parametrize(
    ("published", "verdict"), [(1.0, "agrees"), (3.0, "agrees"), (0.99, "differs"), (4, "differs")]
)
def test_a_number_of_the_paper_is_in_the_range_or_not(figure, published, verdict):
    assert figure.range_verdict(1.0, 3.0, published) == verdict


@pytest.mark.parametrize(("name", "key"), [("Fig. 9", "fig9"), ("Table IV", "tableIV"), ("Fig. 11 GNMT", "fig11GNMT")])
def test_the_name_of_a_figure_is_its_key_without_points_and_spaces(figure, name, key):
    assert figure.drawing(name, "", "").key == key


def test_keys_differ(papers):
    for paper in papers.PAPERS.values():
        keys = [figure.key.lower() for figure in paper.figures]
        assert len(keys) == len(set(keys))


def run(papers, monkeypatch, *arguments):
    """Return the exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["papers.py", *arguments])
    try:
        papers.main()
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure", "fig7"], "--figure: expected --paper too"),
        (["--paper", "avgpipe", "--figure", "fig99"], "--figure: got fig99, expected one of fig1, "),
        (["--paper", "avgpipe", "--figure", "fig7", "--out", "page.md"], "--out: a page has whole papers"),
        (["--paper", "another"], "invalid choice: 'another'"),
    ],
)
def test_a_bad_request_is_refused_in_one_line_with_exit_code_2(
    papers, monkeypatch, tmp_path, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert run(papers, monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_one_figure_is_repeated_and_printed(papers, monkeypatch, capsys):
    assert run(papers, monkeypatch, "--paper", "avgpipe", "--figure", "FIG7") == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| Fig. 7 |")]
    assert len(rows) == 1
    assert rows[0].endswith("| waits 2, 9; micro-batches 8, 2, 3; time 40, 52, 40 | agrees |")
