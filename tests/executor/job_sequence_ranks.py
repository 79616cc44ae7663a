"""One rank of several jobs: ``python -m tests.executor.job_sequence_ranks FOLDER`` with RANK and WORLD_SIZE set.

Starting Python and torch takes far longer than a tiny job: so all of them share their processes.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import STDOUT

from pipesched.executor import ExecutionError
from pipesched.executor.launch import job_from_json, job_to_json
from pipesched.executor.runs import run_rank
from pipesched.executor.training import Trained
from pipesched.profiles.io import trusted
from tests.processes import run_all

ROOT = Path(__file__).parents[2]


def run_together(jobs, num_ranks, folder):
    """Run every job (name -> RunSpec) on the same `num_ranks` processes.

    Return name -> its losses, by micro-batch or by step, or what went wrong.
    """
    for name, job in jobs.items():
        (folder / f"{name}.json").write_text(job_to_json(job))
    return json.loads(run_module("tests.executor.job_sequence_ranks", num_ranks, folder)[0].splitlines()[-1])


def run_module(module, num_ranks, folder):
    """Run `module` with the folder as its argument in one process per rank; return what each said."""
    given = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    given |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    command = [sys.executable, "-m", module, str(folder)]
    ranks = [given | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
    done = run_all([(command, environment) for environment in ranks], cwd=ROOT, stderr=STDOUT)
    said = [rank.stdout for rank in done]
    assert [rank.returncode for rank in done] == [0] * num_ranks, said
    return said


def losses(text, name, meet):
    """Run the job of this file; return its losses in the first process, None in all others."""
    result = run_rank(_trusted(job_from_json(text, name)), meet=meet)
    if isinstance(result, Trained):
        return [scores.loss for scores in result.steps]
    return None if result is None else result.losses


def _trusted(job):
    """Our own test has written it."""
    return replace(job, model=trusted(job.model))


def main():
    folder, answers = Path(sys.argv[1]), {}
    for path in sorted(folder.glob("*.json")):
        try:
            answers[path.stem] = losses(path.read_text(), path.name, f"file://{folder}/{path.stem}.store")
        except (ExecutionError, ValueError) as error:
            answers[path.stem] = str(error)
            break  # the ranks are not together any more
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # as pipesched.executor.__main__, and for its reason
