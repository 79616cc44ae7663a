"""R5: what commands print and write, byte for byte, over hash seeds and runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fault_rows.attempt import contents
from fault_rows.row import Row
from fault_rows.specimens import specimens

HASH_SEEDS = ("0", "1", "2")
RUNS = 2
COMMANDS = (
    "list",
    "show -s zbv -p 4 -m 8",
    "show -s interleaved -p 4 -m 8 --out x.json",
    "show -s zb_h1 -p 4 -m 8 --out x.csv",
    "check -f schedule.json --json",
    "versions -s pipedream -p 4 -m 8",
    "simulate -s 1f1b -p 4 -m 8 --uniform f=10ms,b=20ms --json",
    "simulate -s zbv -p 4 -m 8 --uniform f=1,i=1,w=1 --out x.json",
    "simulate -s 1f1b -p 4 -m 8 --uniform f=10ms,b=20ms,saved_bytes=1GB --out x.html",
    "compare gpipe,1f1b,zb_h1,interleaved -p 4 -m 8 --uniform f=1,i=1,w=1 --wide",
    "compare gpipe,1f1b,zb_h1 -p 4 -m 8 --uniform f=1,i=1,w=1 --json",
    "compare gpipe,1f1b -p 4 -m 8 --uniform f=1,b=2 --out x.html",
    "gantt -s zbv -p 4 -m 8 --uniform f=1,i=1,w=1",
    "gantt -s zbv -p 4 -m 8 --uniform f=1,i=1,w=1 --out x.png",
    "gantt -s 1f1b -p 4 -m 8 --uniform f=1,b=2,saved_bytes=1MB --out x.svg",
    "gantt -s 1f1b -p 4 -m 8 --uniform f=1,b=2 --out x.html",
    "trace timeline.json --out x.json",
    "replay timeline.json --json",
    "partition profile.json -p 2",
    "plan profile.json -b 8 --devices 2 --out x.json --json",
    "plan profile.json -b 8 --devices 2 --out x.html",
    "plan profile.json -b 8 --devices 2 --workers 2",
    "tune profile.json -p 2 -b 8 -s 1f1b,gpipe --json",
    "tune profile.json -p 2 -b 8 -s 1f1b,gpipe --workers 2 --out x.html",
    "sweep -s 1f1b,gpipe,zbv -p 2,4 -m 4:16:x2 --uniform f=1,i=1,w=1 --out x.csv",
    "sweep -s 1f1b,gpipe -p 2,4 -m 4,8 --uniform f=1,b=2 --out x.parquet",
    "sweep -s 1f1b,gpipe -p 2,4 -m 4,8 --uniform f=1,b=2 --out x.png",
    "sweep -s 1f1b,gpipe -p 2,4 -m 4,8 --uniform f=1,b=2 --out x.html",
    "what-if timeline.json -m 6 --json",
    "import rank0.json rank1.json --out x.json",
    "import rank0.json rank1.json --json",
    "export megatron --plan plan.json",
    "export deepspeed -s 1f1b -p 2 -m 8 --partition 2,2 --microbatch-size 2",
    "schema --all --out .",
)


def lines(count: int) -> Iterator[str]:
    """Yield the section, of the first `count` commands."""
    different = []
    commands = COMMANDS[:count]
    for command in commands:
        results = [_result(command, seed) for seed in HASH_SEEDS for _ in range(RUNS)]
        if any(result != results[0] for result in results):
            parts = {name for result in results for name in result if result[name] != results[0].get(name)}
            different.append(f"`{command}`: {', '.join(sorted(parts))}")
        elif results[0]["exit code"] != b"0":
            different.append(f"`{command}`: exit code {results[0]['exit code'].decode()}")
    yield f"Each command in {len(HASH_SEEDS)} hash seeds x {RUNS} runs. Output, stderr and files are the same bytes:"
    yield f"{len(commands) - len(different)} of {len(commands)} commands."
    yield from (f"- {line}" for line in different)


def _result(command: str, hash_seed: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, data in _specimens().items():
            (folder / file).write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-m", "pipesched", *command.split()],
            cwd=folder,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=False,
        )
        streams = {"exit code": str(done.returncode).encode(), "output": done.stdout, "errors": done.stderr}
        return streams | contents(folder)


_made: dict[str, bytes] = {}


def _specimens() -> dict[str, bytes]:
    if not _made:
        with tempfile.TemporaryDirectory() as name:
            specimens(Path(name))
            _made.update(contents(Path(name)))
    return _made


ROW = Row(
    title="R5: the same bytes",
    goal="json, csv, parquet, svg, png, html, traces, plans and tables are the same over hash seeds and runs: all",
    count=len(COMMANDS),
    lines=lines,
)
