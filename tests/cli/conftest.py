"""A folder with the README's files and some broken ones, and the command line called in it, in this process."""

import json
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pipesched.cli.main import main
from tests.cli.json_answers import require_documented

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *(ROOT / "docs" / name for name in ("commands.md", "formats.md", "planning.md")))
BLOCKS = [
    text
    for page in PAGES
    for kind, text in re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    if re.fullmatch(r"(?:csv \S+)?", kind)
]


class Answer(NamedTuple):
    """What a command said: its exit code, stdout, and stderr but for the files that it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the working directory: mine.csv and stages.csv are those of the README, layers.csv of a page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(next(block for block in BLOCKS if block.startswith("0F0")))
    (tmp_path / "stages.csv").write_text(next(block for block in BLOCKS if block.startswith("stage,")))
    (tmp_path / "layers.csv").write_text(next(block for block in BLOCKS if block.startswith("layer,")))
    (tmp_path / "theirs.csv").write_text(
        "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n"
    )
    (tmp_path / "dead.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    return tmp_path


@pytest.fixture
def no_ranks(monkeypatch):
    """Prepare no process for the ranks of lines that are refused before they run."""
    monkeypatch.setattr("pipesched.executor.launch.fork_client.prepare", lambda device: None)


@pytest.fixture
def pipesched(folder, monkeypatch, capsys):
    """Return a function that runs one command line and returns (code, out, err); then its `wrote` has the files."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("pipesched.cli.terminal._Lines.every_s", 3600.0)
    monkeypatch.setattr("pipesched.cli.main._say_compiling", lambda has_folder: None)

    def call(line):
        monkeypatch.setattr(sys, "argv", ["pipesched", *line.split()])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = capsys.readouterr()
        call.wrote = re.findall(r"^pipesched: wrote (.*)\n", err, re.MULTILINE)
        if "--json" in line.split() and out:
            require_documented(line.split()[0], json.loads(out))
        return Answer(done.value.code, out, re.sub(r"^pipesched: wrote .*\n", "", err, flags=re.MULTILINE))

    yield call
    signal.signal(signal.SIGTERM, before)
