"""One file of every format, made by a command that writes the format, with command lines that read it."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path

from fault_rows.attempt import BAD_INPUT, attempt
from fault_rows.workers import load_torch
from pipesched.cli.main import main
from pipesched.executor.errors import ExecutionError
from pipesched.executor.launch import job_from_json
from pipesched.profiles import ProfileError
from pipesched.schedules import ScheduleError
from pipesched.schedules.formats import read_text

HERE = Path(__file__).parents[2]
UNIFORM = ("--uniform", "f=10ms,b=20ms")
SPLIT = ("--uniform", "f=10ms,i=10ms,w=10ms")
SMALL = ("-s", "1f1b", "-p", "2", "-m", "2")
TRAINING = "train mlp:layers=2,width=4 -s 1f1b -p 2 -m 2 --batch-size 4 --optimizer adam"
CHECKPOINT = "run1/step00000002"
LARGEST_FITTED = 2**22
"""Largest file of a checkpoint whose digest is updated after a damage [bytes]."""
LAYERS = (
    "layer,forward_ms,backward_input_ms,backward_weight_ms,output_bytes\n"
    "embedding,1,0,1,1048576\nblock 1,4,4.5,3.5,1048576\nblock 2,4,4.5,3.5,1048576\nhead,2,2,2,8\n"
)
STAGES = "stage,forward_ms,backward_ms,output_bytes\n0,10,20,1048576\n1,12,24,1048576\n"
LINK = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 3e11}
CLUSTER = {
    "format": "pipesched-cluster",
    "version": 1,
    "devices": [{"memory_bytes": 80_000_000_000, "node": 0}, {"node": 1, "speed": 0.5}],
    "intra": LINK,
    "inter": LINK,
    "nics": [[0], [1]],
}


@dataclass(frozen=True, slots=True)
class Specimen:
    """A file and its readers.

    Attributes:
        name: Name of the file.
        readers: Command lines with the name of the file.
        is_json: Whether the file is JSON, or has a JSON document per line.
        run: Function in place of the command line, if another program reads the file.
        then: Called with the folder after a damage of the file, for example to update digests.
    """

    name: str
    readers: tuple[tuple[str, ...], ...]
    is_json: bool = True
    run: Callable[[Sequence[str]], object] | None = None
    then: Callable[[Path], object] = lambda folder: None  # noqa: ARG005 -- most files stand alone


def specimens(folder: Path) -> Sequence[Specimen]:
    """Write the files into `folder` and return them; a command that fails is an error of the benchmark.

    The commands run once in a process: later calls copy the files.
    """
    written, kinds = _written()
    shutil.copytree(written.name, folder, dirs_exist_ok=True)
    return kinds


@cache
def _written() -> tuple[tempfile.TemporaryDirectory[str], Sequence[Specimen]]:
    """Return a folder with the files, and the files."""
    directory = tempfile.TemporaryDirectory()
    return directory, _write(Path(directory.name))


def _write(folder: Path) -> Sequence[Specimen]:
    (folder / "layers.csv").write_text(LAYERS)
    (folder / "stages.csv").write_text(STAGES)
    (folder / "cluster.json").write_text(json.dumps(CLUSTER))
    graph = HERE / "profiles" / "data" / "pipedream" / "vgg16.graph.txt"
    (folder / "graph.txt").write_bytes(graph.read_bytes())
    traces = HERE / "notebooks" / "traces"
    (folder / "rank1.json").write_bytes(gzip.decompress((traces / "rank1.json.gz").read_bytes()))
    (folder / "rank0.json").write_bytes(gzip.decompress((traces / "rank0.json.gz").read_bytes()))
    for line in (
        "show -s 1f1b -p 2 -m 3 --out schedule.json",
        "show -s zb_h1 -p 2 -m 3 --out torch.csv",
        "simulate -s 1f1b -p 2 -m 3 --uniform f=10ms,b=20ms,output_bytes=1MB --timeline timeline.json",
        "profile --layer-costs layers.csv --microbatch-size 2 --microbatch-sizes 1,4 --out profile.json",
        "plan profile.json -b 8 --devices 2 --out plan.json",
        "tune profile.json -p 2 -b 8 -s 1f1b,gpipe --resume tune.jsonl",
        "sweep -s 1f1b,gpipe -p 2 -m 2:4 --uniform f=1,b=2 --resume sweep.jsonl",
        "run -s 1f1b -p 2 -m 2 --model mlp:layers=2,width=4 --job job.json",
        f"{TRAINING} --steps 2 --checkpoint run1 --every 1",
    ):
        _made(line, folder)
    timeline = folder / "timeline.json"  # as of a run, which all that read one take
    timeline.write_text(timeline.read_text().replace('"predicted"', '"measured"'))
    _made("profile --from timeline.json --out costs.json", folder)
    resumed = ((*TRAINING.split(), "--steps", "4", "--resume", "run1"),)
    kinds = (
        Specimen("schedule.json", (("check", "-f", "schedule.json"), ("simulate", "-f", "schedule.json", *UNIFORM))),
        Specimen("torch.csv", (("check", "-f", "torch.csv"), ("gantt", "-f", "torch.csv", *SPLIT)), is_json=False),
        Specimen(
            "timeline.json",
            (
                ("replay", "timeline.json"),
                ("gantt", "timeline.json", "--out", "new.html"),
                ("what-if", "timeline.json", "-m", "4"),
                ("trace", "timeline.json", "--out", "new.json"),
                ("profile", "--from", "timeline.json", "--out", "new.json"),
            ),
        ),
        Specimen(
            "profile.json",
            (
                ("partition", "profile.json", "-p", "2"),
                ("simulate", *SMALL, "--profile", "profile.json", "--microbatch-size", "2"),
                ("plan", "profile.json", "-b", "4", "--devices", "2", "--out", "new.json"),
            ),
        ),
        Specimen(
            "plan.json",
            (
                ("simulate", "--plan", "plan.json", "--profile", "profile.json"),
                ("export", "torchtitan", "--plan", "plan.json"),
            ),
        ),
        Specimen(
            "tune.jsonl",
            (("tune", "profile.json", "-p", "2", "-b", "8", "-s", "1f1b,gpipe", "--resume", "tune.jsonl"),),
        ),
        Specimen(
            "sweep.jsonl",
            (("sweep", "-s", "1f1b,gpipe", "-p", "2", "-m", "2:4", "--uniform", "f=1,b=2", "--resume", "sweep.jsonl"),),
        ),
        Specimen("cluster.json", (("simulate", *SMALL, *UNIFORM, "--cluster", "cluster.json"),)),
        Specimen(
            "stages.csv",
            (("simulate", *SMALL, "--stage-costs", "stages.csv"),),
            is_json=False,
        ),
        Specimen(
            "layers.csv",
            (
                ("simulate", *SMALL, "--layer-costs", "layers.csv"),
                ("profile", "--layer-costs", "layers.csv", "--microbatch-size", "2", "--out", "new.json"),
            ),
            is_json=False,
        ),
        Specimen("graph.txt", (("partition", "graph.txt", "-p", "2"),), is_json=False),
        Specimen("rank0.json", (("import", "rank0.json", "rank1.json", "--out", "new.json"),)),
        Specimen("job.json", (("job.json",),), run=read_job),
        Specimen("costs.json", (("simulate", "-s", "1f1b", "-p", "2", "-m", "3", "--stage-costs", "costs.json"),)),
        Specimen(f"{CHECKPOINT}/index.json", resumed, then=fit_digests),
        Specimen(f"{CHECKPOINT}/rank0-stage0.safetensors", resumed, is_json=False, then=fit_digests),
        Specimen(f"{CHECKPOINT}/losses.safetensors", resumed, is_json=False, then=fit_digests),
    )
    load_torch()
    without = [reader for kind in kinds if kind.run is None for reader in kind.readers if reader[0] != "train"]
    _warm_up(folder, without)
    return kinds


def fit_digests(folder: Path) -> None:
    """Update the index of the checkpoint with the present digests of its files, if the index is valid."""
    from pipesched.executor.training import FileDigest, index_from_json, write_index  # torch, which not all rows need

    checkpoint = folder / CHECKPOINT
    path = checkpoint / "index.json"
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_FITTED:
        return
    try:
        index = index_from_json(path.read_text(), "")
    except (ProfileError, UnicodeDecodeError):
        return
    files = dict(index.files)
    for name in files:
        file = checkpoint / Path(name).name
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= LARGEST_FITTED:
            data = file.read_bytes()
            files[name] = FileDigest(num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    write_index(checkpoint, replace(index, files=files))


def _made(line: str, folder: Path) -> None:
    made = attempt(line.split(), folder, limit_s=60)
    if made.exit_code != 0:
        raise SystemExit(f"faults: {line}: exit code {made.exit_code}: {made.errors}")


def _warm_up(folder: Path, readers: Sequence[Sequence[str]]) -> None:
    """Import the modules of the commands in this process, so that attempts need not; run in a copy of the folder."""
    with tempfile.TemporaryDirectory() as name, chdir(shutil.copytree(folder, Path(name) / "copy")):
        for reader in readers:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
                sys.argv = ["pipesched", *reader]
                try:
                    main()
                except SystemExit as end:
                    if end.code:
                        raise SystemExit(f"faults: {' '.join(reader)}: {errors.getvalue()}") from None


def read_job(arguments: Sequence[str]) -> None:
    """Read a job as ``python -m pipesched.executor`` does, without torchrun."""
    path = Path(arguments[0])
    try:
        job_from_json(read_text(path), str(path))
    except (ScheduleError, ProfileError, ExecutionError) as error:
        print(f"executor: {error}", file=sys.stderr)
        raise SystemExit(BAD_INPUT) from error
