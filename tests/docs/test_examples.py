"""What the tutorial and the how-tos show is what comes out: `python docs/examples.py PAGES` writes it anew."""

import re

import pytest

from docs.examples import ROOT, Example, rewritten, run_page

PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("tutorial.md", "own_schedule.md", "sweep.md"))]
PAGES += sorted((ROOT / "docs" / "howto").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_comes_out(path, tmp_path):
    examples = list(run_page(path.read_text(), tmp_path))
    assert examples
    for example in examples:
        assert example.is_true, f"{example.code}\n{example.shown}\nis shown; printed is\n{example.printed}"


def test_what_is_left_out_is_as_long_as_it_likes():
    assert Example("", 0, 0, "first\n...\nlast\n", "first\n\nmore\nlast\n").is_true
    assert Example("", 0, 0, "first\n...\n", "first\n").is_true
    assert not Example("", 0, 0, "first\n...\nlast\n", "first\nlast one\n").is_true
    assert not Example("", 0, 0, "1.5 ... idle\n", "1.5 and ... idle\n").is_true, "dots in a line are dots"


def test_a_page_is_written_anew_but_for_what_it_leaves_out(tmp_path):
    page = "```text note.txt\none\n```\n\n```console\n$ cat note.txt\ntwo\n$ cat \\\n  note.txt\n...\n```\n"
    page += "\n```python\nprint(1 + 1)\n```\n\n```text\n```\n"
    examples = list(run_page(page, tmp_path))
    assert [example.printed for example in examples] == ["one\n", "one\n", "2\n"]
    assert [example.is_true for example in examples] == [False, True, False]
    assert rewritten(page, examples) == page.replace("\ntwo\n", "\none\n").replace("```text\n```", "```text\n2\n```")


def test_a_command_that_fails_unsaid_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match=re.escape("$(exit 3): got exit code 3")):
        list(run_page("```console\n$ (exit 3)\n```\n".replace("(exit", "$(exit"), tmp_path))
    (tmp_path / "said").mkdir()
    (example,) = run_page("```console\n$ (exit 3)  # exit code 3\n```\n", tmp_path / "said")
    assert example.is_true
