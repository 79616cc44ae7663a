"""``python -m pipesched.executor``: one rank of a run, as torchrun starts it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipesched.executor import PeerLost, RankFailed, rank_command
from pipesched.executor.launch import Measure, RunSpec, job_to_json
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.schedules.lowering import lower
from tests import processes
from tests.executor.checkpoint_runs import listening
from tests.executor.pipelines import job

ROOT = Path(__file__).parents[2]
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
RANK_0 = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def torchrun(num_processes, *arguments, **environment):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    given = {key: value for key, value in os.environ.items() if key not in TORCHRUN}
    given |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment
    return processes.run([sys.executable, *launcher, "-m", "pipesched.executor", *map(str, arguments)], env=given)


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(job_to_json(job(build("1f1b", 2, 3))))
    return path


@pytest.fixture
def refused(monkeypatch, capfd):
    """Return a function that runs the command of rank 0 in this process; it returns the exit code and the line."""
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)

    def call(*arguments, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = rank_command.main([*map(str, arguments)])
        (line,) = capfd.readouterr().err.splitlines()
        return code, line

    return call


def test_without_a_rank_it_says_how_to_start_it(job_file, refused):
    told = "RANK and WORLD_SIZE and MASTER_ADDR and MASTER_PORT: got no value, expected the environment of torchrun"
    assert refused(job_file) == (2, f"executor: {told}; start with torchrun, or use 'pipesched run'")


def test_another_number_of_processes_than_ranks_is_refused(job_file, refused):
    code, line = refused(job_file, **RANK_0 | {"WORLD_SIZE": "3"})
    assert (code, line) == (
        2,
        "executor: schedule 1f1b has 2 ranks, but 3 processes were started; start a process for each rank",
    )


@pytest.mark.parametrize("out", ["none/x.json", ".", "x.png", "x"])
def test_an_output_that_cannot_be_written_is_refused_before_the_run(job_file, out, refused):
    code, line = refused(job_file, "--out", job_file.parent / out, **RANK_0)
    assert code == 2
    assert line.startswith("executor: --out: got ")


@pytest.mark.parametrize("text", ["{", '{"job": {"kind": "measure", "schedule": 3}}', "\0", None])
def test_a_job_that_is_malformed_or_not_there_is_one_line(text, tmp_path, refused):
    path = tmp_path / "job.json"
    if text is not None:
        path.write_text(text)
    code, line = refused(path, **RANK_0)
    assert code in (2, 3)
    assert str(path) in line


def test_a_list_that_cannot_finish_is_the_answer_no(tmp_path, refused):
    path = tmp_path / "job.json"
    path.write_text(job_to_json(job(lower(build("gpipe", 2, 1)))).replace(r"\"0SEND_F0>1\", ", ""))
    code, line = refused(path, **RANK_0)
    assert code == 1
    assert "rank 1 op 0: 1RECV_F0 has no Send on rank 0" in line


@pytest.mark.parametrize(("error", "file"), [(RankFailed, "error0"), (PeerLost, "waited0")])
def test_a_rank_tells_its_error_before_it_aborts_its_communicators(error, file, tmp_path, monkeypatch, capsys):
    """The abort may hang: by then the launcher and the user know why."""
    (tmp_path / "job.json").write_text(job_to_json(job(build("gpipe", 2, 1))))
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())
    for name, value in RANK_0.items():
        monkeypatch.setenv(name, value)
    known = []

    def run(spec, number, folder):
        raise error("rank 0 failed at 0F0: why")

    def abort():
        known.append(((tmp_path / file).read_text(), capsys.readouterr().err))

    monkeypatch.setattr(rank_command, "_run_for_launcher", run)
    monkeypatch.setattr(rank_command, "abort_failed", abort)
    assert rank_command.main(["--folder", str(tmp_path)]) == 3
    assert known == [("rank 0 failed at 0F0: why", "executor: rank 0 failed at 0F0: why\n")]


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="ranks can watch each other on Linux")
def test_under_torchrun_a_rank_that_cannot_report_is_named_by_the_rank_beside_it(tmp_path):
    spec = RunSpec(
        job=Measure(schedule=to_json(build("gpipe", 2, 4)), iterations=1, warmup=0),
        model="faulty_models:sleeping_with_the_lock:layer=1",
        bounds=((0, 1), (1, 3)),
        timeout_s=4.0,
    )
    (tmp_path / "job.json").write_text(job_to_json(spec))
    folders = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
    done = torchrun(2, tmp_path / "job.json", "--trust-model", PYTHONPATH=folders, TMPDIR=str(tmp_path))
    assert done.returncode != 0
    (told,) = (line for line in done.stderr.splitlines() if line.startswith("executor: "))
    assert re.match(r"executor: rank 1 failed at 1F2 \(micro-batch 2\): it has stood still for .*has waited", told)
    assert processes.processes_in(tmp_path) == []
    stacks = Path(told.rpartition(" the stacks of all ranks are in ")[2]).read_text()
    assert "interpreter.py" in stacks.partition("\nrank 1:\n")[0].partition("\nrank 0:\n")[2]
    assert "faulty_models.py" in stacks.partition("\nrank 1:\n")[2]


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the ranks in /proc")
def test_ranks_end_with_torchruns_agent_also_one_that_is_stopped(tmp_path):
    costs = StageCosts((StageCost(9.0, 9.0),) * 2, origin="by hand")
    (tmp_path / "job.json").write_text(job_to_json(job(build("gpipe", 2, 2), None, emulate=costs)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)}
    command = [*launcher, "-m", "pipesched.executor", str(tmp_path / "job.json")]
    with processes.started(command, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL) as agent:
        assert processes.eventually(lambda: len(listening(agent.pid, signal.SIGTERM)) == 2)
        os.kill(listening(agent.pid, signal.SIGTERM)[1], signal.SIGSTOP)
        agent.kill()
        agent.wait()
        assert processes.eventually(lambda: processes.processes_in(tmp_path) == [])
