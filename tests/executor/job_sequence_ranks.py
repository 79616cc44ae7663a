"""One rank of several jobs, which all share their processes: a process takes far longer than a tiny job."""

import json
import os
from dataclasses import replace
from pathlib import Path

from pipesched.executor import ExecutionError
from pipesched.executor.launch import job_from_json, job_to_json
from pipesched.executor.launch.fork_client import fork
from pipesched.executor.runs import run_rank
from pipesched.executor.training import Trained
from pipesched.profiles.io import trusted

ROOT = Path(__file__).parents[2]


def run_together(jobs, num_ranks, folder):
    """Run every job (name -> RunSpec) on the same `num_ranks` processes.

    Return name -> its losses, by micro-batch or by step, or what went wrong.
    """
    for name, job in jobs.items():
        (folder / f"{name}.json").write_text(job_to_json(job))
    return json.loads(run_module("tests.executor.job_sequence_ranks", num_ranks, folder)[0].splitlines()[-1])


def run_module(module, num_ranks, folder):
    """Run ``main([folder])`` of `module` in one process per rank; return the output of each."""
    codes, printed = end_of_module(module, num_ranks, folder)
    assert codes == [0] * num_ranks, printed
    return printed


def end_of_module(module, num_ranks, folder, **environment):
    """Run `module` as `run_module` does; return the exit code and the output of each process."""
    given = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)} | environment
    given |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    logs = [folder / f"log{rank}" for rank in range(num_ranks)]
    ranks = [
        fork([str(folder)], given | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, log, module=module)
        for rank, log in enumerate(logs)
    ]
    return [rank.wait() for rank in ranks], [log.read_text() for log in logs]


def losses(text, name, meet):
    """Run the job of this file; return its losses in the first process, None in all others."""
    result = run_rank(_trusted(job_from_json(text, name)), meet=meet)
    if isinstance(result, Trained):
        return [scores.loss for scores in result.steps]
    return None if result is None else result.losses


def _trusted(job):
    """Our own test has written it."""
    return replace(job, model=trusted(job.model))


def main(arguments):
    folder, answers = Path(arguments[0]), {}
    for path in sorted(folder.glob("*.json")):
        try:
            answers[path.stem] = losses(path.read_text(), path.name, f"file://{folder}/{path.stem}.store")
        except (ExecutionError, ValueError) as error:
            answers[path.stem] = str(error)  # the ranks meet again for the next one
    print(json.dumps(answers), flush=True)
    return 0
