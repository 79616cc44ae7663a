"""Help: every command says what it does with examples, its options in groups, and nothing is cut."""

import re
import shlex

import pytest

from pipesched.cli.help_pages import EXAMPLES
from pipesched.cli.program import COMMANDS, make_program


@pytest.fixture
def page(pipesched, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def read(name):
        answer = pipesched(f"{name} -h")
        assert (answer.code, answer.err) == (0, "")
        return answer.out

    return read


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_fits_80_columns_and_has_examples_groups_and_no_ranges(page, name):
    text = page(name)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(rf"^Examples:\n  pipesched {name}.*\n  pipesched {name}", text, re.MULTILINE)
    assert "\nOutput:\n" in text
    assert not re.search(r"<=|>=|<\w+>|…", text)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("simulate", "Schedule Costs Machines Network Options Output"), ("tune", "Search Machines Network Run Output")],
)
def test_options_stand_in_groups_in_this_order(page, name, groups):
    headings = re.findall(r"^(\w+):$", page(name), re.MULTILINE)
    assert [heading for heading in headings if heading in groups.split()] == groups.split()


def test_p_means_one_thing(page):
    meanings = {re.findall(r"^  -p, --(\w+) ", page(name), re.MULTILINE)[0] for name in COMMANDS if "-p," in page(name)}
    assert meanings == {"ranks"}


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("simulate", ["default: rendezvous", "default: 1)", "Keys: f, b, i, w, step_s", "Keys: latency_s"]),
        ("tune", ["(required)", "default: avgpipe"]),
    ],
)
def test_defaults_and_keys_are_told(page, name, texts):
    text = " ".join(page(name).split())
    assert all(part in text for part in texts)


def test_the_page_of_the_program_lists_every_command_with_a_sentence(page):
    text = page("")
    assert max(map(len, text.splitlines())) <= 80
    assert set(re.findall(r"^  ([a-z-]+)  +[A-Z]", text, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_have_words_and_examples_are_lines_that_are_read(name):
    command = make_program().get_command(None, name)
    assert all(option.help for option in command.params)
    for line in EXAMPLES[name]:
        first, *words = [word for word in shlex.split(line) if word.strip()]
        assert first == name
        command.make_context(name, words)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sim", "simulate"),
        ("simulate --unif", "--uniform"),
        ("show -s zb_", "zb_h1"),
        ("tune --evaluator me", "measure"),
    ],
)
def test_a_shell_completes_commands_options_and_schedules(pipesched, monkeypatch, typed, offered):
    monkeypatch.setenv("_PIPESCHED_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"pipesched {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    answer = pipesched("")
    assert answer.code == 0
    assert offered in answer.out.split()
