"""What the library says of its arguments, said of options."""

import ast
import re
from pathlib import Path

import pytest

from pipesched.cli.errors import InputError, in_flags
from pipesched.profiles import ProfileError
from pipesched.profiles.io import TRUST_ADVICE
from pipesched.profiles.models.model import users_code
from pipesched.workflows import ArgumentError


@pytest.mark.parametrize(
    ("of_arguments", "of_options"),
    [
        ("num_runs: got 5 without `jitter`; try `jitter=0.1`", "--runs: got 5 without --jitter; try --jitter 0.1"),
        ("num_microbatches: got 3; try `num_chunks=2`", "--microbatches: got 3; try --chunks 2"),
        ("costs.csv: got 3 stages, expected 2", "costs.csv: got 3 stages, expected 2"),
    ],
)
def test_arguments_are_said_as_options(of_arguments, of_options):
    assert in_flags(ArgumentError(of_arguments)) == of_options


@pytest.mark.parametrize(
    "error", [InputError("links: got `a`"), ValueError("stubborn: got 2 ranks"), ProfileError("stages: got 2")]
)
def test_what_speaks_of_no_argument_stays_as_it_is(error):
    assert in_flags(error) == str(error)


def test_an_error_of_another_kind_may_speak_of_arguments_too():
    assert in_flags(ProfileError("stages: got 2; try `by=time`")) == "stages: got 2; try --by time"


def test_a_name_in_an_error_of_another_library_is_no_option():
    with pytest.raises(ProfileError) as caught, users_code("its class"):
        raise ValueError("`num_heads` is 4,\nnot `num_runs=5`")
    assert "got ValueError ('num_heads' is 4, not 'num_runs=5'), expected" in in_flags(caught.value)


@pytest.mark.parametrize(
    ("of_library", "of_commands"),
    [
        ("schedule: got 'foo'; see pipesched.CATALOGUE", "schedule: got 'foo'; see 'pipesched list'"),
        (
            "p.json: got a profile of a; try pipesched.profile('mlp')",
            "p.json: got a profile of a; try pipesched profile mlp --out FILE",
        ),
        ("schedules: got avgpipe; try pipesched.tune", "schedules: got avgpipe; try pipesched tune"),
        (
            f"plan.json: model: got 'a:b'; {TRUST_ADVICE}",
            "plan.json: model: got 'a:b'; try --trust-model if you trust the file",
        ),
    ],
)
def test_what_the_library_advises_is_said_as_a_command(of_library, of_commands):
    assert in_flags(ProfileError(of_library)) == of_commands


COMMANDS = "|".join(("list", "show", "profile", "tune", "simulate", "run", "train", "plan", "verify"))


@pytest.mark.slow
def test_no_message_of_the_library_names_a_flag_or_a_command():
    package = Path(__file__).parents[2] / "pipesched"
    rooms = ("schedules", "profiles", "simulator", "executor", "workflows")
    files = [file for room in rooms for file in sorted((package / room).rglob("*.py"))]
    files = [file for file in files if file.name not in ("__main__.py", "rank_command.py")]  # commands
    assert len(files) > 200
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                words = " ".join(text.value for text in ast.walk(node) if is_text(text))
                words = words.replace("torchrun --nproc-per-node", "torchrun")  # its own
                assert not re.search(rf"(^|[\s'(])--[a-z]|pipesched ({COMMANDS})\b", words), (file, words)


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
