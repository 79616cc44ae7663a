"""What the README says works as it stands there."""

import shlex

import pytest

from pipesched import import_traces
from pipesched.profiles.io import save_json
from tests.cli.conftest import BLOCKS
from tests.profiles.hand_profiles import layer, measurement, profile
from tests.profiles.traces.kineto_files import two_ranks

QUICK = (
    "check",
    "simulate",
    "gantt",
    "show",
    "list",
    "compare",
    "import",
    "what-if",
    "export",
)  # and what needs no machine
LINES = [shlex.split(line, comments=True) for block in BLOCKS for line in block.replace("\\\n", "").splitlines()]
WORDS = [words for words in LINES if words[:1] == ["pipesched"] and words[1] in QUICK and "$(cat" not in words]
COMMANDS = [" ".join(words[1:]) for words in WORDS]


def test_the_readme_has_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme_works(pipesched, folder, line):
    layers = [layer(*(measurement(size) for size in (1, 2, 4))) for _ in range(8)]
    save_json(profile(*layers), folder / "gpt.json")
    import_traces(two_ranks(folder, count=4)).save(folder / "run.json")
    answer = pipesched(line)
    assert (answer.code, answer.err) == (0, "")
