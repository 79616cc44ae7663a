"""A run without a flush that is told to leave ends at a step before its next checkpoint, as a run of so many steps."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipesched.executor.core import lists_of
from pipesched.executor.launch import DrainPage, LeaveRequest, LocalGate, early_drain, ending_early, job_to_json
from pipesched.executor.launch.early_drain import DrainAgreement
from pipesched.executor.runs import launch_training
from pipesched.executor.training import checkpoint_folder, find_checkpoint, read_index
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.transforms import training_run
from tests import processes
from tests.executor.checkpoint_runs import a_job, listening, locally

ROOT = Path(__file__).parents[2]
GENERATED = [name for name, entry in CATALOGUE.items() if entry.build_generated is not None]
FAR = 100_000
"""Steps to a checkpoint that no test waits for."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(early_drain, "GRACE_S", 0.0)


def files_after(folder, steps):
    return read_index(checkpoint_folder(folder, steps)).files


class Said(early_drain.Gate):
    """Says from a micro-batch on that lists end before another."""

    def __init__(self, since, end):
        self._since, self._said, self._end = since, None, end

    @property
    def end(self):
        return self._said

    def reach(self, microbatch):
        if microbatch >= self._since:
            self._said = self._end
        return self._said


@pytest.mark.parametrize("name", GENERATED)
def test_lists_that_end_early_are_those_of_fewer_steps(name):
    """Also where somebody hears of it late; not where that is beyond the end of the part."""
    counted = {"pipelined": 30} if any(parameter.counts_run for parameter in CATALOGUE[name].parameters) else {}
    run = training_run(name, 4, 4, 40, **counted)
    per_step, first = run.microbatches_per_step, 8
    for steps, said in ((1, 0), (5, 4), (19, 18), (20, 3), (60, 3)):

        def lists(steps=steps, said=said):
            gate = Said((first + said) * per_step, (first + steps) * per_step)
            part = run.part(first, 20)
            return ending_early(
                part, lambda: first * per_step, lambda size: run.part(first, size // per_step), gate.reach
            )

        expected = run.part(first, min(steps, 20))
        for rank in range(4):
            assert list(lists().lists[rank]) == list(expected.lists[rank])
            assert list(lists_of(lists(), {rank})[rank]) == list(lists_of(expected, {rank})[rank])


@pytest.mark.parametrize("scheme", ["1f1b", "1f1b_rr", "hybrid", "avgpipe"])
def test_a_run_that_is_told_to_leave_ends_as_one_of_so_many_steps_and_goes_on_as_that(scheme, tmp_path):
    """All files of its checkpoint are those of a run that was to have no more steps, and so is what comes then."""
    told, given = [], {"every": 20, "steps": 24}
    paused = locally(
        a_job(scheme, tmp_path / "cut", **given), lambda step, _: told.append(step), is_asked=lambda: len(told) > 4
    )
    steps = len(paused.steps)
    assert paused.is_paused
    assert 5 <= steps < 12
    whole = locally(a_job(scheme, tmp_path / "whole", every=20, steps=steps))
    assert paused.steps == whole.steps
    assert files_after(tmp_path / "cut", steps) == files_after(tmp_path / "whole", steps)
    ends = [
        locally(a_job(scheme, folder, start=find_checkpoint(folder)[0], **given))
        for folder in (tmp_path / "cut", tmp_path / "whole")
    ]
    assert ends[0] == ends[1]
    assert files_after(tmp_path / "cut", 24) == files_after(tmp_path / "whole", 24)


def test_a_checkpoint_that_comes_soon_by_itself_is_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(early_drain, "GRACE_S", processes.PATIENCE_S)
    paused = locally(a_job("pipedream", tmp_path, every=20, steps=24), is_asked=lambda: True)
    assert len(paused.steps) == 20


@pytest.mark.distributed
def test_processes_agree_on_the_step(tmp_path):
    told, given = [], {"every": FAR, "steps": 2 * FAR, "model": "mlp:width=8,layers=6"}
    paused = launch_training(
        a_job("1f1b_rr", tmp_path / "cut", **given), lambda step, _: told.append(step), is_asked=lambda: len(told) > 30
    )
    steps = len(paused.steps)
    assert paused.is_paused
    assert steps < FAR
    whole = locally(a_job("1f1b_rr", tmp_path / "whole", **given | {"steps": steps}))
    assert paused.steps == whole.steps
    assert files_after(tmp_path / "cut", steps) == files_after(tmp_path / "whole", steps)


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the ranks in /proc")
def test_ranks_of_torchrun_agree_on_the_step(tmp_path):
    given = {"every": FAR, "steps": 2 * FAR, "model": "mlp:width=8,layers=6"}
    (tmp_path / "job.json").write_text(job_to_json(a_job("pipedream", tmp_path / "cut", **given)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    log = tmp_path / "log.jsonl"
    command += ["-m", "tests.executor.soon_drained", str(tmp_path / "job.json"), "--out", str(log)]
    with processes.started(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as agent:
        assert processes.eventually(lambda: len(listening(agent.pid)) == 2)
        os.kill(listening(agent.pid)[1], signal.SIGUSR1)
        _, errors = agent.communicate(timeout=processes.PATIENCE_S)
    assert "exitcode  : 75" in errors
    _, index = find_checkpoint(tmp_path / "cut")
    assert index.steps < FAR
    whole = locally(a_job("pipedream", tmp_path / "whole", **given | {"steps": index.steps}))
    assert files_after(tmp_path / "whole", index.steps) == index.files
    written = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
    assert written == [scores.loss for scores in whole.steps], "rank 0 writes the log"


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_nobody_comes_to_what_is_decided(num_ranks, tmp_path):
    """Readers of different haste, each in a thread, and somebody who proposes while they read."""
    for draw in range(20):
        page, request, come_to = DrainPage.create(tmp_path / f"page{draw}", num_ranks), LeaveRequest(3, FAR, 0), {}

        def read(number, page=page, come_to=come_to, haste_s=draw * 1e-5):
            gate, microbatch = page.gate(number), 0
            while gate.reach(microbatch) is None or microbatch < gate.end:
                come_to[number] = microbatch
                microbatch += 1
                time.sleep(haste_s * (1 + number))

        readers = [threading.Thread(target=read, args=(number,)) for number in range(num_ranks)]
        for reader in readers:
            reader.start()
        time.sleep(0.002)
        while not page.agreement.decided:
            page.write(
                page.agreement.following(page.read, request) if request.is_late(is_asked=True) else page.agreement
            )
            time.sleep(0.002)
        for reader in readers:
            reader.join(processes.PATIENCE_S)
        assert page.agreement.decided % 3 == 0
        assert set(come_to.values()) == {page.agreement.decided - 1}


def test_a_proposal_is_further_on_where_one_before_was_too_late():
    request = LeaveRequest(4, 5, 2)
    assert DrainAgreement().following(0, request) == DrainAgreement(proposed=12), "the run begins with two steps"
    assert DrainAgreement(12).following(11, request) == DrainAgreement(12, decided=12)
    assert DrainAgreement(12).following(13, request) == DrainAgreement(proposed=16)
    assert DrainAgreement(12).following(14, request) == DrainAgreement(proposed=24), "20 is the end of a part anyway"


def test_a_reader_that_runs_nothing_waits_for_no_decision():
    request = LeaveRequest(1, FAR, 0)
    gate = LocalGate(request, lambda: True)
    assert gate.end is None
    assert gate.reach(3) == gate.end == 4
