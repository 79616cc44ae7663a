"""The examples of docs/library.md run, each by itself in a folder of its own."""

import builtins
import re
from pathlib import Path

import pytest

import pipesched
from pipesched.executor import core
from pipesched.profiles import clusters, costs
from pipesched.schedules import transforms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"## ([^\n]*)\n|```python\n(.*?)```", PAGE, re.DOTALL)
SHORT = ("Simulate", "Run", "Compare", "Tune")
_LONGEST = 15


def examples():
    """Yield the heading and the code of each example."""
    heading = ""
    for title, code in BLOCKS:
        heading = title or heading
        if code:
            yield heading, code


EXAMPLES = list(examples())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "code"), EXAMPLES, ids=[f"{i}-{heading}" for i, (heading, _) in enumerate(EXAMPLES)]
)
def test_an_example_runs(heading, code, tmp_path, monkeypatch):
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipesched, "close", lambda: None)  # the next example needs the process that it would end
    exec(compile(code, f"docs/library.md, {heading}", "exec"), {"__name__": "__main__"})


def test_what_the_page_names_is_offered():
    """A name in code font that begins as a class does, or is called, stands in the library, or in a folder of it."""
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    classes = set(re.findall(r"`([A-Z][A-Za-z]*)`", prose)) - set(dir(builtins))
    functions = set(re.findall(r"`pipesched\.([a-z_]+)\(", PAGE))
    assert {"Plan", "Model", "ScheduleSpec", "Device", "Compression"} <= classes
    assert {"compare_runs", "verify_rounds"} <= functions
    offered = {*dir(pipesched), *clusters.__all__, *costs.__all__, *core.__all__, *transforms.__all__}
    assert classes | functions <= offered


def test_the_usual_examples_are_short():
    for name in SHORT:
        lines = next(code for heading, code in EXAMPLES if heading == name).splitlines()
        assert len([line for line in lines if line.strip()]) < _LONGEST, name
