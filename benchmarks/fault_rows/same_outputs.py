"""R5: commands print and write the same bytes over hash seeds and runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fault_rows.attempt import attempt, contents
from fault_rows.row import Row, Section
from fault_rows.specimens import specimens
from fault_rows.workers import worked_off

HASH_SEEDS = ("0", "1", "2")
RUNS = 2
NUM_WORKERS = 2
LIMIT_S = 120.0
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


def lines(count: int) -> Section:
    """Yield the section on the first `count` commands."""
    commands = COMMANDS[:count]
    seeds = [seed for seed in HASH_SEEDS for _ in range(RUNS)]
    with tempfile.TemporaryDirectory() as name:
        specimens(Path(name))
        results = worked_off(lambda index: _digests_under(seeds[index], Path(name), count), len(seeds), NUM_WORKERS)
    different = []
    for command, digests in zip(commands, zip(*results, strict=True), strict=True):
        first = digests[0]
        names = {name for digest in digests for name in digest}
        parts = {name for name in names if len({digest.get(name) for digest in digests}) > 1}
        if parts:
            different.append(f"`{command}`: {', '.join(sorted(parts))}")
        elif first["exit code"] != "0":
            different.append(f"`{command}`: exit code {first['exit code']}")
    yield f"Each command in {len(HASH_SEEDS)} hash seeds x {RUNS} runs, forked from an interpreter with that seed."
    yield f"Output, stderr and files are the same bytes: {len(commands) - len(different)} of {len(commands)} commands."
    yield from (f"- {line}" for line in different)
    return not different


def _digests_under(hash_seed: str, folder: Path, count: int) -> Any:
    """Return the digests of `print_digests` in an interpreter with this hash seed."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from fault_rows import same_outputs; same_outputs.print_digests({str(folder)!r}, {count})",
        ],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def print_digests(folder: str, count: int) -> None:
    """Print the SHA-256 of the output and of each file of each command in a copy of `folder`, as JSON."""
    with tempfile.TemporaryDirectory() as name:
        made = []
        for number, command in enumerate(COMMANDS[:count]):
            copy = Path(name) / str(number)
            shutil.copytree(folder, copy)
            result = attempt(command.split(), copy, limit_s=LIMIT_S)
            parts = {"output": result.output.encode(), "errors": result.errors.encode(), **contents(copy)}
            digests = {part: hashlib.sha256(data).hexdigest() for part, data in parts.items()}
            made.append({"exit code": str(result.exit_code), **digests})
            shutil.rmtree(copy)
    print(json.dumps(made))


ROW = Row(
    title="R5: the same bytes",
    goal="json, csv, parquet, svg, png, html, traces, plans and tables are the same over hash seeds and runs: all",
    count=len(COMMANDS),
    lines=lines,
)
