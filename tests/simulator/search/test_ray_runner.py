"""A judge on a Ray cluster of two machines, each a raylet of its own, which are killed meanwhile."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CLUSTER = """
import os, signal, subprocess, sys, threading, time
from contextlib import suppress
from itertools import count
from pathlib import Path
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
machines = [cluster.add_node(num_cpus=1) for _ in range(2)]

def kill(machine):
    for raylet in machine.all_processes["raylet"]:
        listed = ["ps", "-o", "pid=", "--ppid", str(raylet.process.pid)]
        workers = subprocess.run(listed, capture_output=True, text=True).stdout.split()
        for pid in (raylet.process.pid, *map(int, workers)):
            os.kill(pid, signal.SIGKILL)
"""
SWEEP = """
from pipesched.cli.main import main

kept = Path(sys.argv[1])

def kill_one():
    while not kept.exists() or kept.read_text().count(chr(10)) < 3:
        time.sleep(0.01)
    kill(machines[0])
    print("killed" if sweeps else "killed too late", file=sys.stderr, flush=True)

sweeps = [True]
killer = threading.Thread(target=kill_one, daemon=True)
killer.start()
sys.argv = ["pipesched", *sys.argv[2:], "--ray", cluster.address, "--resume", str(kept)]
with suppress(SystemExit):
    main()
sweeps.clear()
killer.join()
"""
SQUARES = """
from pipesched.simulator import SimulationError
from pipesched.simulator.search import make_ray_runner, runners

def squared(number):
    return number**2

numbers = count()
answers = make_ray_runner(cluster.address)(squared, lambda: [next(numbers)])
assert [next(answers) for _ in range(3)] == [0, 1, 4]
kill(machines[1])
runners._PATIENCE_S = 0.5
try:
    print(sum(1 for _ in answers))
except SimulationError as error:
    print(error, file=sys.stderr)
"""
SOON = {"RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "200"}
"""Ray asks its machines every 0.2 s: five refused connections in a row, and a machine counts as lost."""
LINE = "sweep -s pipedream,1f1b -p 4,8 -m 64:640:64 --uniform f=1,b=2 --json --top 100".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Kill one machine of two in a sweep, then the other; in a process of its own, as Ray leaves some behind."""
    kept = tmp_path_factory.mktemp("sweep") / "kept.jsonl"
    command = [sys.executable, "-P", "-c", CLUSTER + SWEEP + SQUARES, kept, *LINE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | SOON)
    assert done.returncode == 0, done.stderr
    return done


def test_where_no_machine_is_left_it_is_said(printed):
    error = next(line for line in printed.stderr.splitlines() if line.startswith("Ray: got no core at "))
    assert error.endswith("and continue from the journal of `resume`")


def test_a_sweep_of_which_a_machine_is_killed_prints_what_one_machine_does(printed):
    """The other machine predicts the settings that the killed machine had not finished."""
    command = [sys.executable, "-P", "-m", "pipesched", *LINE, "--workers", "1"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "killed\n" in printed.stderr, "before all was done"
    told = printed.stdout[printed.stdout.index("{") :]
    assert json.JSONDecoder().raw_decode(told)[0] == json.loads(alone.stdout)
