"""The command of a rank: read the job, run the rank named by the environment, and write the results."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from pipesched.executor import NOBODY, PAUSE_SIGNALS, PAUSED
from pipesched.executor.errors import ExecutionError, PeerLost, RankFailed, writing
from pipesched.executor.launch import (
    DrainPage,
    ProgressPage,
    RunSpec,
    Train,
    WatchedRank,
    abort_failed,
    is_under_agent,
    job_from_json,
    pause_requests,
    ranks_of_processes,
    stacks_written_to,
    watched,
)
from pipesched.executor.runs import (
    Measured,
    RankListener,
    drain_file,
    going_on,
    measure_on_streams,
    patient,
    phase_line,
    phases_file,
    result_file,
    result_to_text,
    run_rank,
    scores_file,
    scores_line,
)
from pipesched.executor.training import Scores, Trained, step_line
from pipesched.profiles import ProfileError
from pipesched.profiles.io import TRUST_ADVICE, require_trusted, trusted
from pipesched.profiles.processes import end_with, prints_to_stderr
from pipesched.schedules import NotRunnableError, ScheduleError
from pipesched.schedules.common import printable
from pipesched.schedules.formats import read_text, suffix_of, timeline_to_json, write_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rank named by the environment; return the exit code.

    Args:
        arguments: Arguments of the command line (default: of this process).
    """
    asked = _parser().parse_args(arguments)
    folder = asked.folder
    if asked.parent is not None:
        end_with(asked.parent)
    needed = ["RANK", "WORLD_SIZE", *([] if folder else ["MASTER_ADDR", "MASTER_PORT"])]
    missing = [name for name in needed if not os.environ.get(name)]
    if missing:
        names = " and ".join(missing)
        print(
            (
                f"executor: {names}: got no value, expected the environment of torchrun; start with torchrun, or use "
                "'pipesched run'"
            ),
            file=sys.stderr,
        )
        return 2
    number = int(os.environ["RANK"])  # of the process; its rank in the schedule follows from the devices
    try:
        if folder:
            tempfile.tempdir = str(folder)  # files of a killed process are removed with it
        path = folder / "job.json" if folder else asked.job
        with nullcontext() if folder or not is_under_agent() else watched() as watch:
            if number == 0 and asked.out:
                _require_writable(asked.out)
            spec = _read_job(path, trusts=bool(folder) or asked.trust_model)  # a folder is the launcher's own
            if folder:
                result = _run_for_launcher(spec, number, folder)
            else:
                with prints_to_stderr():
                    result = _run_unlaunched(spec, watch)
        if result is not None:
            return _report(spec, result, folder, asked.out)
    except (ScheduleError, ProfileError, ExecutionError) as error:
        if folder:
            kind = "waited" if isinstance(error, PeerLost) else "error"
            (folder / f"{kind}{number}").write_text(str(error))
        text = str(error).replace(TRUST_ADVICE, "try --trust-model if you trust the file")
        print(f"executor: {printable(' '.join(text.split()))}", file=sys.stderr, flush=True)
        abort_failed()
        return 3 if isinstance(error, RankFailed) else 1 if isinstance(error, NotRunnableError) else 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipesched.executor", description="Run one rank of a job.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("job", nargs="?", type=Path, help="the job, as 'pipesched run --job' writes it")
    source.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--trust-model", action="store_true", help="trust the job: import its model (package.module:factory)"
    )
    parser.add_argument(
        "--out", type=Path, help="file of the first process: the measured Timeline (.json) or the losses (.jsonl)"
    )
    return parser


def _read_job(path: Path, *, trusts: bool) -> RunSpec:
    """Return the job in a file; its model may need an import only if the file is trusted."""
    text = read_text(path)
    job = job_from_json(text, str(path))
    if job.model is None:
        return job
    name = trusted(job.model) if trusts else job.model
    require_trusted(name)
    return replace(job, model=name)


def _run_unlaunched(spec: RunSpec, watch: WatchedRank | None) -> Measured | Trained | None:
    """Run the rank of a process without a launcher of ours; under torchrun it is watched."""
    signals = (signal.SIGUSR1,)  # SIGTERM is how the agent ends all ranks
    with pause_requests(has_checkpoints=spec.has_checkpoints, signals=signals) as is_asked:
        if watch is None:
            return run_rank(spec, RankListener(is_asked=is_asked))
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) and spec.has_checkpoints:
            spec, _ = going_on(spec)
        device = watch.page.device_row(0)
        return run_rank(
            spec,
            RankListener(watch.at, device=device, is_asked=is_asked, gate=watch.drain_page.gate(0, is_asked)),
            watch=watch,
        )


def _run_for_launcher(spec: RunSpec, number: int, folder: Path) -> Measured | Trained | None:
    """Run the rank of a process in its launcher's folder, and write its progress and scores there."""
    spec = patient(spec)
    with (folder / f"stacks{number}").open("w") as stacks, stacks_written_to(stacks):
        return _run_listened_to(spec, number, folder)


def _rank_listener(page: ProgressPage, rank: int) -> RankListener:
    """Return the listener for one of several ranks of this process."""
    row = page.host_row(rank)
    row.begin()
    return RankListener(row.reach, on_turn=partial(row.wait, NOBODY), device=page.device_row(rank))


def _run_listened_to(spec: RunSpec, number: int, folder: Path) -> Measured | Trained | None:
    page, meet = ProgressPage.open(folder / "progress"), f"file://{folder}/store"
    if spec.is_in_one_process:
        return measure_on_streams(spec, partial(_rank_listener, page))
    listener = RankListener(page.writer(number), device=page.device_row(number))
    if not isinstance(spec.job, Train):
        return run_rank(spec, listener, meet)

    def on_phase(num_steps: int, advance: int) -> None:
        if number == 0:
            with phases_file(folder).open("a") as file:
                file.write(phase_line(num_steps, advance))

    with scores_file(folder, number).open("w", buffering=1) as file:

        def on_scores(microbatch: int, scores: Scores) -> None:
            file.write(scores_line(microbatch, scores))

        drain = DrainPage.open(drain_file(folder)) if spec.has_checkpoints else None
        for told in PAUSE_SIGNALS if drain is not None else ():
            signal.signal(told, signal.SIG_IGN)  # a signal to all processes is for the launcher, which tells ranks
        return run_rank(
            spec,
            replace(
                listener,
                on_scores=on_scores,
                on_phase=on_phase,
                is_asked=listener.is_asked if drain is None else lambda: drain.is_asked,
                gate=None if drain is None else drain.gate(number),
            ),
            meet,
        )


def _require_writable(out: Path) -> None:
    """Refuse, before the run, an output file that cannot be written at its end."""
    if suffix_of(out) not in (".json", ".jsonl"):
        raise ExecutionError(
            f"--out: got suffix {out.suffix!r}, expected .json for a Timeline, .jsonl for losses; try {out.stem}.json"
        )
    if not out.parent.is_dir() or out.is_dir():
        raise ExecutionError(f"--out: got {str(out)!r}, expected a file in an existing folder; try another path")


def _report(spec: RunSpec, result: Measured | Trained, folder: Path | None, out: Path | None) -> int:
    """Write the result of the first process, for its launcher or for people; return the exit code."""
    match result:
        case Measured():
            with writing(ranks_of_processes(result.timeline.rank_to_device)[0]):
                if folder:
                    write_text(result_file(folder), result_to_text(result))
                elif out:
                    write_text(out, timeline_to_json(result.timeline))
            if not folder:
                print(json.dumps(result.numbers()))
        case Trained() if folder:  # the launcher has read the scores as they came
            write_text(result_file(folder), result_to_text(replace(result, steps=())))
        case Trained():
            _report_training(spec, result, out)
            return PAUSED if result.is_paused else 0
    return 0


def _report_training(spec: RunSpec, trained: Trained, out: Path | None) -> None:
    """Write the scores of all steps, and print the first and the last."""
    run = spec.training.run
    samples = run.pipelines * spec.training.batch_size
    lines = [step_line(run.name, step, scores, samples) for step, scores in enumerate(trained.steps)]
    if out:
        write_text(out, "".join(json.dumps(line) + "\n" for line in lines))
    where = None if trained.diverged is None else trained.diverged.step
    ahead = {} if trained.ahead is None else {"advance": trained.ahead.advance}
    print(json.dumps({"first": lines[0], "last": lines[-1], "diverged_at": where, **ahead}))


def run_and_leave() -> NoReturn:
    """Run the rank of this process, and leave with its exit code.

    It does not use sys.exit: gloo's threads may still hold tensors, and one freed while Python shuts down aborts the
    process.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
