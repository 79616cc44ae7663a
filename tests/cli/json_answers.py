"""What a command says with ``--json``, and what docs/commands.md says of it."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
FILES = {"show": "pipesched.schedule", "profile-links": "pipesched-cluster", "trace": None}
"""Commands whose answer is a file of ours, or of Perfetto."""


def documented():
    """Return the keys that the page says for each command: (always there, there where there is something)."""
    table = PAGE.read_text().partition("| `--json` of | keys |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines()[2:]]
    keys = {}
    for names, always, sometimes in rows:
        for name in re.findall(r"`([a-z-]+)`", names):
            keys.setdefault(name, []).append(
                (set(re.findall(r"`(\w+)`", always)), set(re.findall(r"`(\w+)`", sometimes)))
            )
    return keys


def require_documented(command, answer):
    """Say whether an answer has the keys, and only those, that the page has."""
    if command in FILES or ("format" in answer and answer["format"] in ("pipesched-profile", "pipesched-run-costs")):
        return
    assert (answer["format"], answer["version"]) == (f"pipesched.{command}", 1)
    assert all(isinstance(note, str) for note in answer["notes"])
    keys = answer.keys() - {"format", "version", "notes"}
    assert any(always <= keys <= always | sometimes for always, sometimes in documented()[command]), (command, keys)


def data(pipesched, line):
    """Return what `line` says as data; it must end well and say nothing else."""
    answer = pipesched(f"{line} --json")
    assert (answer.code, answer.err) == (0, "")
    return json.loads(answer.out)
