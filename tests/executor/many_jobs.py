"""One rank of several jobs in turn: ``python -m tests.executor.many_jobs FOLDER`` with RANK and WORLD_SIZE set.

Starting Python and torch takes far longer than a tiny job: so all of them share their processes.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pipesched.executor.distributed import run_rank
from pipesched.executor.errors import ExecutionError
from pipesched.executor.job import job_from_json, job_to_json
from pipesched.executor.training_job import TrainingJob, is_training_job, training_job_from_json, training_job_to_json
from pipesched.executor.training_rank import train_rank
from pipesched.profiles.model_name import trusted

ROOT = Path(__file__).parents[2]


def run_together(jobs, num_ranks, folder):
    """Run every job (name -> Job or TrainingJob) on the same `num_ranks` processes.

    Return name -> its losses, by micro-batch or by step, or what went wrong.
    """
    for name, job in jobs.items():
        text = training_job_to_json(job) if isinstance(job, TrainingJob) else job_to_json(job)
        (folder / f"{name}.json").write_text(text)
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


def losses(text, name, meet):
    """Run the job of this file; return its losses in the first process, None in all others."""
    if is_training_job(text):
        trained = train_rank(_trusted(training_job_from_json(text, name)), meet=meet)
        return None if trained is None else [scores.loss for scores in trained.steps]
    result = run_rank(_trusted(job_from_json(text, name)), meet=meet)
    return None if result is None else result.losses


def _trusted(job):
    """Our own test has written it."""
    return replace(job, model=trusted(job.model))


def main():
    folder, found = Path(sys.argv[1]), {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = losses(path.read_text(), path.name, f"file://{folder}/{path.stem}.store")
        except (ExecutionError, ValueError) as error:
            found[path.stem] = str(error)
            break  # the ranks are not together any more
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # as pipesched.executor.__main__, and for its reason
