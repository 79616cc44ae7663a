"""One rank of a run: ``torchrun --nproc-per-node 2 -m executor job.json --out measured.json``.

``pipesched run --job job.json`` writes the job; ``pipesched run`` alone starts the processes itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from executor.board import Board
from executor.distributed import Result, run_rank
from executor.errors import ExecutionError, PeerLost, RankFailed
from executor.job import STOP_SIGNALS, Job, job_from_json
from profiles.errors import ProfileError
from schedules.formats.files import read_text, write_text
from schedules.formats.timeline_json import timeline_to_json
from schedules.schedule import ScheduleError


def main() -> int:
    """Run the rank that the environment names; return the exit code."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the launcher held them back
    arguments = _parser().parse_args()
    rank = int(os.environ.get("RANK", "-1"))
    if rank < 0:
        print("executor: RANK is not set; start it with torchrun, or use 'pipesched run'", file=sys.stderr)
        return 2
    folder = arguments.folder
    try:
        job = _job(folder / "job.json" if folder else arguments.job)
        meet = (Board(folder / "board").writer(rank), f"file://{folder}/store") if folder else ()
        result = run_rank(job, *meet)
        if result is not None:
            _report(result, folder, arguments.out)
    except (ScheduleError, ProfileError, ExecutionError) as error:
        if folder:
            kind = "waited" if isinstance(error, PeerLost) else "error"
            (folder / f"{kind}{rank}").write_text(str(error))
        print(f"executor: {error}", file=sys.stderr)
        return 3 if isinstance(error, RankFailed) else 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m executor", description="Run one rank of a job.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("job", nargs="?", type=Path, help="the job, as 'pipesched run --job' writes it")
    what.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="where rank 0 writes the measured Timeline")
    return parser


def _job(path: Path) -> Job:
    return job_from_json(read_text(path), str(path))


def _report(result: Result, folder: Path | None, out: Path | None) -> None:
    numbers = {"makespans_s": [timeline.makespan_s for timeline in result.timelines], "losses": result.losses}
    if folder:
        (folder / "result.json").write_text(json.dumps(numbers))
        write_text(folder / "timeline.json", timeline_to_json(result.median))
        return
    if out:
        write_text(out, timeline_to_json(result.median))
    print(json.dumps(numbers))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # not sys.exit: gloo's threads may still hold tensors, and one freed while Python shuts down aborts the process
    os._exit(code)
