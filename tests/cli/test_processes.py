"""What only whole processes show: what is loaded, closed pipes, and being stopped."""

import json
import os
import signal
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import gettempdir

import pytest

from tests.processes import PATIENCE_S, eventually, processes_in, run, started, without_progress

ROOT = Path(__file__).parents[2]
GPT = ROOT / "profiles" / "data" / "gpt-10m-epyc.json"
HEAVY = ("torch", "pandas", "matplotlib")


def python(*arguments, cwd=ROOT):
    return run([sys.executable, *arguments], cwd=cwd)


def loaded_by(code, modules):
    done = python("-c", f"{code}\nimport sys, json\nprint(json.dumps([m for m in {modules!r} if m in sys.modules]))")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_libraries_load_nothing_heavy():
    rooms = "from pipesched import schedules, profiles, simulator; import pipesched.schedules.formats"
    assert loaded_by(rooms, (*HEAVY, "pydantic")) == []
    assert loaded_by("import pipesched.executor", HEAVY) == []


@pytest.mark.parametrize(
    "package", [f"pipesched.{room}" for room in ("schedules", "schedules.formats", "profiles", "simulator", "executor")]
)
def test_every_public_name_can_be_imported(package):
    module = __import__(package, fromlist=["__all__"])
    assert sorted(module.__all__) == list(dict.fromkeys(sorted(module.__all__)))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly():
    command = [sys.executable, "-m", "pipesched", "trace", "-s", "1f1b", "-p", "4", "-m", "300", "--uniform", "f=1,b=2"]
    with started(command, cwd=ROOT, stdout=PIPE, stderr=PIPE) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_too_many_open_files_are_no_unwritable_output():
    line = ["sweep", "-s", "1f1b,gpipe", "-p", "2,4", "-m", "4:8", "--uniform", "f=1,b=2", "--workers", "2"]
    code = "import resource\nfrom pipesched.cli.main import main\n"
    done = python("-c", f"{code}resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))\nmain()", *line)
    said = "files: got Too many open files, expected one more; try a higher limit of open files (ulimit -n)"
    assert (done.returncode, done.stderr) == (2, f"pipesched: {said}\n")


SIMULATED = "simulate -s 1f1b -p 2 -m 4 --uniform f=1,b=2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "to", "said"),
    [
        ("list", ">/dev/full", "No space left on device"),
        (f"{SIMULATED} --json", ">&-", "Bad file descriptor"),
        ("list --help", ">&- <&-", "Bad file descriptor"),
    ],
)
def test_a_full_disk_and_a_closed_stdout_are_said_in_one_line(line, to, said):
    done = run(["sh", "-c", f"exec {sys.executable} -m pipesched {line} {to}"], cwd=ROOT)
    expected = f"pipesched: output: got {said}, expected it to work; try another place\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "to", "code"),
    [
        (SIMULATED, "2>&-", 0),
        (f"{SIMULATED} --out {{folder}}/x.json", "2>/dev/full", 0),
        ("simulate -s nope -p 2 -m 4", "2>/dev/full", 2),
        (SIMULATED, ">&- 2>&-", 2),
        (SIMULATED, "<&-", 0),
    ],
)
def test_the_exit_code_is_right_where_nobody_can_be_told(tmp_path, line, to, code):
    line = line.format(folder=tmp_path)
    assert run(["sh", "-c", f"exec {sys.executable} -m pipesched {line} {to}"], cwd=ROOT).returncode == code
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] * ("--out" in line)


@pytest.mark.slow
def test_nothing_is_written_where_the_answer_cannot_be_printed(tmp_path):
    done = run(["sh", "-c", f"{sys.executable} -m pipesched {SIMULATED} --out {tmp_path}/x.json >/dev/full"], cwd=ROOT)
    assert (done.returncode, "wrote" in done.stderr, list(tmp_path.iterdir())) == (2, False, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "megabytes"),
    [
        ("simulate -s 1f1b -p 64 -m 4096 --uniform f=1,b=2", 30),
        ("gantt -s 1f1b -p 4 -m 8 --uniform f=1,b=2 --out {folder}/x.png", 200),
        ("sweep -s 1f1b -p 2,4 -m 4:64:x2 --uniform f=1,b=2 --workers 2", 300),
        ("run -s 1f1b -p 2 -m 4 --uniform f=1ms,b=1ms", 60),
    ],
)
def test_a_limit_of_memory_is_said_in_one_line(tmp_path, line, megabytes):
    command = f"ulimit -v {megabytes * 1024} && exec {sys.executable} -m pipesched {line.format(folder=tmp_path)}"
    done = run(["sh", "-c", command], cwd=ROOT)
    assert done.returncode in (0, 2), done.stderr
    assert done.returncode == 0 or (done.stderr.startswith("pipesched: "), done.stderr.count("\n")) == (True, 1)
    assert done.returncode == 2 or megabytes > 30
    assert done.returncode == 0 or list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ranks_are_refused_where_a_limit_of_memory_would_keep_them_from_starting():
    line = "run -s 1f1b -p 2 -m 4 --uniform f=1ms,b=1ms"
    command = f"ulimit -v {1000 * 1024} && exec {sys.executable} -m pipesched {line}"
    done = run(["sh", "-c", command], cwd=ROOT)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("pipesched: memory: got ")


@pytest.mark.parametrize("option", ["--out", "--timeline"])
@pytest.mark.parametrize(
    "name", ["self.json", "a.json", "pipe.json", "folder.json", "none/x.json", "x" * 300 + ".json"]
)
def test_a_file_that_cannot_be_written_is_refused_in_one_line(pipesched, tmp_path, option, name):
    (tmp_path / "self.json").symlink_to("self.json")
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    before = sorted(tmp_path.iterdir())
    answer = pipesched(f"{SIMULATED} {option} {name}")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith("pipesched: ")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for the ranks in /proc")
def test_a_run_that_is_stopped_leaves_no_process_and_no_file(tmp_path):
    line = "run -s avgpipe -p 1 -m 2 --model mlp:layers=1,width=8 --iterations 1000000 --out x.json"
    command = [sys.executable, "-m", "pipesched", *line.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with started(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, env=environment) as process:
        assert eventually(lambda: len(processes_in(tmp_path)) >= 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, without_progress(err)) == (130, "", "pipesched: stopped\n")
        assert eventually(lambda: processes_in(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


SEARCH = "optimize -s v_half -p 4 -m 8 --uniform f=1,i=1,w=1 --seconds 10000 --workers 1"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for the search in /proc")
def test_a_search_that_is_stopped_answers_with_the_best_so_far_and_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "pipesched", *SEARCH.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with started(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, env=environment) as process:
        assert eventually(lambda: len(processes_in(tmp_path)) == 2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, without_progress(err)) == (0, "")
    assert "best known" in out
    assert "the search was stopped" in " ".join(out.split())
    assert processes_in(tmp_path) == []


EMULATED = "run -s 1f1b -p 2 -m 4 --uniform f=9,b=9"


@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for the ranks in /proc")
@pytest.mark.parametrize(
    ("line", "count"),
    [
        (EMULATED, 4),  # it, the process that ranks are forked from, the ranks
        (EMULATED, 2),  # while that process is loading
        ("profile mlp:layers=2,width=8 --companions 1 --repeats 1000000", 2),
        (f"tune {GPT} --ranks 8 --batch-size 4096 --workers 2 -n 1-64 --advance 0-64", 4),
    ],
    ids=["forked", "early", "companions", "workers"],
)
def test_a_command_that_is_killed_leaves_no_process_and_no_file(tmp_path, line, count):
    command = [sys.executable, "-c", "from pipesched.cli.main import main; main()", *line.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = gettempdir()  # which torch keeps
    with started(command, cwd=tmp_path, env=environment, stdout=DEVNULL) as process:
        assert eventually(lambda: len(processes_in(tmp_path)) >= count)
        process.kill()
        process.wait()
        assert eventually(lambda: processes_in(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for the ranks in /proc")
def test_a_run_whose_terminal_is_closed_leaves_no_process_and_no_file(tmp_path):
    command = [sys.executable, "-m", "pipesched", *EMULATED.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with started(command, cwd=tmp_path, env=environment) as process:
        assert eventually(lambda: len(processes_in(tmp_path)) >= 4)
        os.killpg(process.pid, signal.SIGHUP)
        process.wait()
        assert eventually(lambda: processes_in(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for the ranks in /proc")
@pytest.mark.parametrize(
    ("is_server", "stop"), [(True, signal.SIGKILL), (False, signal.SIGINT)], ids=["server, killed", "rank, interrupted"]
)
def test_a_run_of_which_a_process_is_stopped_can_be_ended(tmp_path, stop, is_server):
    command = [sys.executable, "-m", "pipesched", *EMULATED.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with started(command, cwd=tmp_path, env=environment, stderr=DEVNULL) as process:
        assert eventually(lambda: len(processes_in(tmp_path)) >= 4)
        (server,) = children(process.pid)
        os.kill(server if is_server else children(server)[0], signal.SIGSTOP)
        process.send_signal(stop)
        process.wait(PATIENCE_S)
        assert eventually(lambda: processes_in(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
