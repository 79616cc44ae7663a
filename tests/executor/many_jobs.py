"""One rank of several jobs in turn: ``python -m tests.executor.many_jobs FOLDER`` with RANK and WORLD_SIZE set.

Starting Python and torch takes far longer than a tiny job: so all of them share their processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from executor.distributed import run_rank
from executor.errors import ExecutionError
from executor.job import job_from_json, job_to_json

ROOT = Path(__file__).parents[2]


def run_together(jobs, num_ranks, folder):
    """Run every job (name -> Job) on the same `num_ranks` processes; return name -> its losses, or what went wrong."""
    for name, job in jobs.items():
        (folder / f"{name}.json").write_text(job_to_json(job))
    return json.loads(run_module("tests.executor.many_jobs", num_ranks, folder)[0].splitlines()[-1])


def run_module(module, num_ranks, folder):
    """Run `module` with the folder as its argument in one process per rank; return what each said."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(folder)],
            cwd=ROOT,
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
            | {"LOCAL_WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    try:
        said = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * num_ranks, said
    return said


def main():
    folder, found = Path(sys.argv[1]), {}
    for path in sorted(folder.glob("*.json")):
        try:
            result = run_rank(job_from_json(path.read_text(), path.name), meet=f"file://{folder}/{path.stem}.store")
        except (ExecutionError, ValueError) as error:
            found[path.stem] = str(error)
            break  # the ranks are not together any more
        found[path.stem] = None if result is None else result.losses
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # as executor.__main__, and for its reason
