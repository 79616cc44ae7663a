"""A judge on a Ray cluster of two machines, each a raylet of its own, of which one is killed meanwhile."""

import json
import os
import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import pytest

from pipesched.simulator import SimulationError
from pipesched.simulator.search import make_ray_runner, runners

SWEEP = """
import os, signal, subprocess, sys, threading, time
from contextlib import suppress
from pathlib import Path
from ray.cluster_utils import Cluster
from pipesched.cli.main import main

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
machine = cluster.add_node(num_cpus=1)
kept = Path(sys.argv[1])

def kill():
    while not kept.exists() or kept.read_text().count(chr(10)) < 3:
        time.sleep(0.01)
    for raylet in machine.all_processes["raylet"]:
        listed = ["ps", "-o", "pid=", "--ppid", str(raylet.process.pid)]
        workers = subprocess.run(listed, capture_output=True, text=True).stdout.split()
        for pid in (raylet.process.pid, *map(int, workers)):
            os.kill(pid, signal.SIGKILL)
    print("killed" if sweeps else "killed too late", file=sys.stderr, flush=True)

sweeps = [True]
killer = threading.Thread(target=kill, daemon=True)
killer.start()
line = ["pipesched", *sys.argv[2:]]
for more in (["--ray", cluster.address, "--resume", str(kept)], ["--workers", "1"]):
    sys.argv = line + more
    with suppress(SystemExit):
        main()
    sweeps.clear()
killer.join()
"""
SOON = {"RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "200"}
"""Ray asks its machines every 0.2 s: five refused connections in a row, and a machine counts as lost."""
LINE = "sweep -s pipedream,1f1b -p 4,8 -m 64:320:64 --uniform f=1,b=2 --json --top 100".split()  # noqa: SIM905


@pytest.mark.slow
def test_a_sweep_of_which_a_machine_is_killed_prints_what_one_machine_does(tmp_path):
    """The other machine predicts the settings that the killed machine had not finished.

    The sweep runs in a process of its own, as Ray leaves some behind.
    """
    command = [sys.executable, "-P", "-c", SWEEP, tmp_path / "kept.jsonl", *LINE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | SOON)
    assert done.returncode == 0, done.stderr
    assert "killed\n" in done.stderr, "before all was done"
    shared, end = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{"))
    alone, _ = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{", end))
    assert len(shared["settings"]) == 20
    assert shared == alone


def test_where_no_machine_is_left_it_is_said(monkeypatch):
    """A cluster in place of Ray's squares three numbers, and then has no core."""
    cores = [1, 1, 1]
    cluster = SimpleNamespace(
        init=lambda **_: None,
        shutdown=lambda: None,
        put=lambda judge: judge,
        remote=lambda run: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=run)),
        cluster_resources=lambda: {"CPU": cores.pop()} if cores else {},
        wait=lambda running, timeout: ([], running) if running == [[9]] else (running, []),
        get=lambda done: done,
        exceptions=SimpleNamespace(RayError=ArithmeticError),
    )
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(runners, "_PATIENCE_S", 0.0)
    numbers = count()
    answers = make_ray_runner("a cluster")(lambda number: number**2, lambda: [next(numbers)])
    assert [next(answers) for _ in range(3)] == [0, 1, 4]
    with pytest.raises(SimulationError, match=r"^Ray: got no core at 'a cluster' .* from the journal of `resume`$"):
        next(answers)
