"""``python -m pipesched.executor``: one rank of a run, as torchrun starts it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipesched.executor import PeerLost, RankFailed, rank_command
from pipesched.executor.launch import Measure, RunSpec, job_to_json
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.formats import read_timeline, to_json
from pipesched.schedules.lowering import lower
from tests import processes
from tests.executor.checkpoint_runs import listening
from tests.executor.pipelines import MLP, job, whole_model

ROOT = Path(__file__).parents[2]
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
RANK_0 = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def run(command, **environment):
    clean = {key: value for key, value in os.environ.items() if key not in TORCHRUN}
    given = clean | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment
    return processes.run([sys.executable, *command], env=given)


def torchrun(num_processes, *arguments, **environment):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    return run([*launcher, "-m", "pipesched.executor", *map(str, arguments)], **environment)


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(job_to_json(job(build("1f1b", 2, 3))))
    return path


@pytest.mark.distributed
def test_torchrun_runs_a_job_and_rank_0_writes_the_timeline(job_file, tmp_path):
    out = tmp_path / "measured.json"
    done = torchrun(2, job_file, "--out", out)
    assert done.returncode == 0, done.stderr
    timeline = read_timeline(out)
    assert timeline.source == "measured"
    assert [span.op for span in timeline.spans] == [op for row in lower(build("1f1b", 2, 3)).ops for op in row]
    printed = json.loads(done.stdout)
    module, inputs, targets, loss = whole_model(MLP, 6)
    expected = [loss(module(inputs[i : i + 2]), targets[i : i + 2]).item() for i in (0, 2, 4)]
    assert printed["losses"] == pytest.approx(expected, rel=1e-12)
    assert printed["makespans_s"] == [pytest.approx(timeline.makespan_s)]


@pytest.mark.distributed
def test_another_number_of_processes_than_ranks_is_refused(job_file):
    done = torchrun(3, job_file)
    assert done.returncode != 0
    assert "executor: schedule 1f1b has 2 ranks, but 3 processes were started" in done.stderr


def test_without_a_rank_it_says_how_to_start_it(job_file):
    done = run(["-m", "pipesched.executor", str(job_file)])
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "executor: RANK and WORLD_SIZE and MASTER_ADDR and MASTER_PORT: not set; start it with torchrun, "
        "or use 'pipesched run'",
    ]


@pytest.mark.parametrize("out", ["none/x.json", ".", "x.png", "x"])
def test_an_output_that_cannot_be_written_is_refused_before_the_run(job_file, out):
    done = run(["-m", "pipesched.executor", str(job_file), "--out", str(job_file.parent / out)], **RANK_0)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("executor: --out: got ")


@pytest.mark.parametrize("text", ["{", '{"job": {"kind": "measure", "schedule": 3}}', "\0"])
def test_a_malformed_job_is_one_line(text, tmp_path):
    path = tmp_path / "job.json"
    path.write_text(text)
    done = run(["-m", "pipesched.executor", str(path)], **RANK_0)
    assert done.returncode in (2, 3)
    assert len(done.stderr.splitlines()) == 1
    assert str(path) in done.stderr


def test_a_job_that_is_not_there_is_one_line(tmp_path):
    done = run(["-m", "pipesched.executor", str(tmp_path / "none.json")], **RANK_0)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_list_that_cannot_finish_is_the_answer_no(tmp_path):
    schedule = lower(build("gpipe", 2, 1))
    path = tmp_path / "job.json"
    text = job_to_json(job(schedule)).replace(r"\"0SEND_F0>1\", ", "")
    path.write_text(text)
    done = run(["-m", "pipesched.executor", str(path)], **RANK_0)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "rank 1 op 0: 1RECV_F0 has no Send on rank 0" in done.stderr


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
@pytest.mark.parametrize("model", ["raising_colours:layer=1,at=2", "raising_colours:layer=0,at=0"])
def test_under_torchrun_a_users_exception_is_a_line_without_controls(model, tmp_path):
    """It is raised in an op, or where the shapes between stages are found."""
    spec = RunSpec(
        job=Measure(schedule=to_json(build("gpipe", 2, 4)), iterations=1, warmup=0),
        model=f"faulty_models:{model}",
        bounds=((0, 1), (1, 3)),
    )
    (tmp_path / "job.json").write_text(job_to_json(spec))
    folders = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
    done = torchrun(2, tmp_path / "job.json", "--trust-model", PYTHONPATH=folders)
    told = [line for line in done.stderr.splitlines() if "of two lines" in line]
    assert done.returncode != 0
    assert told
    assert all(line.startswith("executor: ") and "[31mred" in line for line in told)
    assert "\x1b[31m" not in done.stderr
    assert "\x07" not in done.stderr


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="ranks can watch each other on Linux")
@pytest.mark.parametrize(
    ("fault", "how"),
    [
        pytest.param("stopping", "its process is stopped by a signal", marks=pytest.mark.slow),
        ("sleeping_with_the_lock", "it has stood still for "),
        pytest.param("killed", r"(the process was killed by signal 9|its process ended)"),
    ],
)
def test_under_torchrun_a_rank_that_cannot_report_is_named_by_the_rank_beside_it(fault, how, tmp_path):
    spec = RunSpec(
        job=Measure(schedule=to_json(build("gpipe", 2, 4)), iterations=1, warmup=0),
        model=f"faulty_models:{fault}:layer=1",
        bounds=((0, 1), (1, 3)),
        timeout_s=8.0,
    )
    (tmp_path / "job.json").write_text(job_to_json(spec))
    folders = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
    done = torchrun(2, tmp_path / "job.json", "--trust-model", PYTHONPATH=folders, TMPDIR=str(tmp_path))
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("executor: ")]
    assert len(told) == 1, done.stderr
    assert re.match(rf"executor: rank 1 failed at 1F2 \(micro-batch 2\): {how}", told[0])
    assert processes.processes_in(tmp_path) == []
    if fault != "killed":
        assert "has waited" in told[0]
        stacks = Path(told[0].rpartition(" the stacks of all ranks are in ")[2]).read_text()
        assert "interpreter.py" in stacks.partition("\nrank 1:\n")[0].partition("\nrank 0:\n")[2]
        assert "faulty_models.py" in stacks.partition("\nrank 1:\n")[2]


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the ranks in /proc")
def test_ranks_end_with_torchruns_agent_also_one_that_is_stopped(tmp_path):
    costs = StageCosts((StageCost(9.0, 9.0),) * 2, origin="by hand")
    (tmp_path / "job.json").write_text(job_to_json(job(build("gpipe", 2, 2), None, emulate=costs)))
    with agent_of(tmp_path / "job.json", tmp_path, stderr=subprocess.DEVNULL) as agent:
        assert processes.eventually(lambda: len(listening(agent.pid, signal.SIGTERM)) == 2)
        os.kill(listening(agent.pid, signal.SIGTERM)[1], signal.SIGSTOP)
        agent.kill()
        agent.wait()
        assert processes.eventually(lambda: processes.processes_in(tmp_path) == [])


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the ranks in /proc")
def test_a_rank_that_is_killed_while_it_loads_torch_is_named_by_its_agent_and_nothing_is_left(job_file, tmp_path):
    with agent_of(job_file, tmp_path, stderr=subprocess.PIPE, text=True) as agent:
        assert processes.eventually(lambda: len(children(agent.pid)) == 2)
        os.kill(children(agent.pid)[1], signal.SIGKILL)
        _, errors = agent.communicate(timeout=processes.PATIENCE_S)
    assert re.search(r"rank +: 1 \(local_rank: 1\)\s+exitcode +: -9", errors), errors
    assert processes.eventually(lambda: processes.processes_in(tmp_path) == [])


@contextmanager
def agent_of(path, folder, **how):
    """Yield an agent of torchrun that starts two ranks of a job in a folder."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)}
    command = [*launcher, "-m", "pipesched.executor", str(path)]
    with processes.started(command, env=environment, cwd=folder, **how) as agent:
        yield agent


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
