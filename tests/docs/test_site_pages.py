"""The pages that the site makes of the program say all of it."""

import inspect
import json

import pytest

import pipesched
from docs.examples import ROOT
from pipesched.cli.program import COMMANDS, make_program

pytest.importorskip("myst_parser", reason="the site is built with pipesched[docs]")

from docs import site_pages


def test_every_command_has_its_options_on_the_page():
    sections = dict(zip(COMMANDS, site_pages.command_lines(), strict=True))
    program = make_program()
    for name, command in ((name, program.get_command(None, name)) for name in COMMANDS):
        assert sections[name].startswith(f"## pipesched {name}\n")
        options = [parameter for parameter in command.params if parameter.opts[0].startswith("-")]
        shown = [option for option in options if any(spelling in sections[name] for spelling in option.opts)]
        assert [option.opts for option in options if option not in shown and not option.hidden] == []


def test_every_public_name_is_on_the_page_but_for_rooms_and_values():
    page = "".join(site_pages.library_lines())
    for name in pipesched.__all__:
        value = getattr(pipesched, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert f":: pipesched.{name}\n" in page


def test_a_notebook_is_a_page_with_its_words_code_and_what_came_out():
    notebook = json.loads((ROOT / "notebooks" / "01_predict_and_run.ipynb").read_text())
    page = "\n\n".join(site_pages.cells_of(notebook))
    assert page.startswith("# ")
    parts = ("```python\n", "![](data:image/png;base64,", "<table", "```text\n", "\n\n1F1B takes ")
    assert all(part in page for part in parts)


def test_what_a_docstring_indents_stands_as_it_is():
    lines = ["Hand over:", "", "    sender |--| next", "", "Args:", "    name: A name."]
    site_pages.keep_drawings(None, "", "", None, None, lines)
    assert lines == ["Hand over::", "", "    sender |--| next", "", "Args:", "    name: A name."]


def test_a_page_of_several_titles_gets_one():
    source = ["# One\n\n```text\n# no title\n```\n\n# Two\n\n## Three\n"]
    site_pages.have_one_title(None, "", source)
    assert source == ["# One\n\n```text\n# no title\n```\n\n## Two\n\n### Three\n"]
    kept = ["# One\n\n## Two\n"]
    site_pages.have_one_title(None, "", kept)
    assert kept == ["# One\n\n## Two\n"]
