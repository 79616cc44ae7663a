"""What only whole processes show: what is loaded, closed pipes, and being stopped."""

import json
import os
import signal
import sys
from contextlib import contextmanager
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
    advice = "try a higher limit of open files (ulimit -n)"
    said = f"files: got Too many open files, expected room for one more open file; {advice}"
    assert (done.returncode, done.stderr) == (2, f"pipesched: {said}\n")


SIMULATED = "simulate -s 1f1b -p 2 -m 4 --uniform f=1,b=2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "to", "said"),
    [
        ("list", ">/dev/full", "No space left on device"),
        (f"{SIMULATED} --json --out {{folder}}/x.json", ">/dev/full", "No space left on device"),
        ("list --help", ">&- <&-", "Bad file descriptor"),
    ],
)
def test_a_full_disk_and_a_closed_stdout_are_said_in_one_line_and_nothing_is_written(tmp_path, line, to, said):
    line = line.format(folder=tmp_path)
    done = run(["sh", "-c", f"exec {sys.executable} -m pipesched {line} {to}"], cwd=ROOT)
    expected = f"pipesched: output: got {said}, expected a working file; try another path\n"
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (2, expected, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "to", "code"),
    [
        (SIMULATED, "2>&-", 0),
        (f"{SIMULATED} --out {{folder}}/x.json", "2>/dev/full", 0),
        ("simulate -s nope -p 2 -m 4", "2>/dev/full", 2),
        (SIMULATED, ">&- 2>&- <&-", 2),
    ],
)
def test_the_exit_code_is_right_where_nobody_can_be_told(tmp_path, line, to, code):
    line = line.format(folder=tmp_path)
    assert run(["sh", "-c", f"exec {sys.executable} -m pipesched {line} {to}"], cwd=ROOT).returncode == code
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] * ("--out" in line)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "megabytes", "begins"),
    [
        ("simulate -s 1f1b -p 64 -m 4096 --uniform f=1,b=2", 30, ""),
        ("gantt -s 1f1b -p 4 -m 8 --uniform f=1,b=2 --out {folder}/x.png", 200, ""),
        ("run -s 1f1b -p 2 -m 4 --uniform f=1ms,b=1ms", 1000, "memory: got "),  # with which no rank could start
    ],
)
def test_a_limit_of_memory_is_said_in_one_line(tmp_path, line, megabytes, begins):
    command = f"ulimit -v {megabytes * 1024} && exec {sys.executable} -m pipesched {line.format(folder=tmp_path)}"
    done = run(["sh", "-c", command], cwd=ROOT)
    if done.returncode != 0 or megabytes != 200:  # the memory of matplotlib is not known
        assert (done.returncode, done.stderr.count("\n"), list(tmp_path.iterdir())) == (2, 1, []), done.stderr
        assert done.stderr.startswith(f"pipesched: {begins}")


@pytest.mark.parametrize(
    "name", ["self.json", "a.json", "pipe.json", "folder.json", "none/x.json", "x" * 300 + ".json"]
)
def test_a_file_that_cannot_be_written_is_refused_in_one_line(pipesched, tmp_path, name):
    (tmp_path / "self.json").symlink_to("self.json")
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    before = sorted(tmp_path.iterdir())
    for option in ("--out", "--timeline"):
        answer = pipesched(f"{SIMULATED} {option} {name}")
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert answer.err.startswith("pipesched: ")
        assert sorted(tmp_path.iterdir()) == before


@pytest.fixture
def begin(tmp_path):
    """Return a function that starts a command in an empty folder, where its processes and files are found."""
    if not Path("/proc/self/cwd").exists():
        pytest.skip("looks for the processes in /proc")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = gettempdir()  # which torch keeps

    @contextmanager
    def begin(line, count, *arguments, **how):
        """Wait for `count` processes; at the end none may be left, and no file."""
        command = [sys.executable, *(arguments or ("-m", "pipesched")), *line.split()]
        with started(command, cwd=tmp_path, env=environment, text=True, **how) as process:
            assert eventually(lambda: len(processes_in(tmp_path)) >= count)
            yield process
            process.wait(PATIENCE_S)
            assert eventually(lambda: processes_in(tmp_path) == [])
        assert list(tmp_path.iterdir()) == []

    return begin


EMULATED = "run -s 1f1b -p 2 -m 4 --uniform f=9,b=9"
RANKS_TOO = 4
"""The command, the process that ranks are forked from, the ranks."""


@pytest.mark.slow
def test_a_search_that_is_stopped_answers_with_the_best_so_far_and_leaves_no_process(begin):
    line = "optimize -s v_half -p 4 -m 8 --uniform f=1,i=1,w=1 --seconds 10000 --workers 1"
    with begin(line, 2, stdout=PIPE, stderr=PIPE) as process:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, without_progress(err)) == (0, "")
    assert "best known" in out
    assert "the search was stopped" in " ".join(out.split())


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("line", "count"),
    [
        (EMULATED, RANKS_TOO),
        (EMULATED, 2),  # while the process that ranks are forked from is loading
        ("profile mlp:layers=2,width=8 --companions 1 --repeats 1000000", 2),
        (f"tune {GPT} --ranks 8 --batch-size 4096 --workers 2 -n 1-64 --advance 0-64", 4),
    ],
    ids=["forked", "early", "companions", "workers"],
)
def test_a_command_that_is_killed_leaves_no_process_and_no_file(begin, line, count):
    with begin(line, count, "-c", "from pipesched.cli.main import main; main()", stdout=DEVNULL) as process:
        process.kill()


@pytest.mark.distributed
def test_a_run_whose_terminal_is_closed_leaves_no_process_and_no_file(begin):
    with begin(EMULATED, RANKS_TOO) as process:
        os.killpg(process.pid, signal.SIGHUP)


@pytest.mark.distributed
def test_a_run_of_which_a_rank_is_stopped_ends_at_an_interrupt(begin):
    with begin(f"{EMULATED} --out x.json", RANKS_TOO, stdout=PIPE, stderr=PIPE) as process:
        (server,) = children(process.pid)
        os.kill(children(server)[0], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, without_progress(err)) == (130, "", "pipesched: stopped\n")


@pytest.mark.distributed
def test_a_run_whose_server_is_stopped_ends_when_it_is_killed(begin):
    with begin(EMULATED, RANKS_TOO, stderr=DEVNULL) as process:
        os.kill(children(process.pid)[0], signal.SIGSTOP)
        process.kill()


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
