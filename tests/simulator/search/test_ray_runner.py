"""A judge on a Ray cluster of two machines, each a raylet of its own, which are killed meanwhile."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CLUSTER = """
import os, signal, subprocess
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})

def two_machines():
    return [cluster.add_node(num_cpus=1) for _ in range(2)]

def kill(machine):
    for raylet in machine.all_processes["raylet"]:
        listed = ["ps", "-o", "pid=", "--ppid", str(raylet.process.pid)]
        workers = subprocess.run(listed, capture_output=True, text=True).stdout.split()
        for pid in (raylet.process.pid, *map(int, workers)):
            os.kill(pid, signal.SIGKILL)
"""
SQUARES = """
from pipesched.simulator import SimulationError
from pipesched.simulator.search import make_ray_runner, runners

def squared(number):
    return number**2

machines = two_machines()
numbers = iter(range(10**9))
answers = make_ray_runner(cluster.address)(squared, lambda: [next(numbers)])
known = [next(answers)]
kill(machines[0])
while set(known) < {number**2 for number in range(20)}:
    known.append(next(answers))
kill(machines[1])
runners._PATIENCE_S = 0.5
try:
    print(sum(1 for _ in answers))
except SimulationError as error:
    print(error)
"""
SWEEP = """
import sys, threading, time
from pathlib import Path
from pipesched.cli.main import main

kept, machines = Path(sys.argv[1]), two_machines()

def kill_one():
    while not kept.exists() or kept.read_text().count(chr(10)) < 3:
        time.sleep(0.01)
    kill(machines[0])
    print("killed", file=sys.stderr, flush=True)

threading.Thread(target=kill_one, daemon=True).start()
sys.argv = ["pipesched", *sys.argv[2:], "--ray", cluster.address, "--resume", str(kept)]
main()
"""


LINE = "sweep -s pipedream,1f1b -p 4,8 -m 64:640:64 --uniform f=1,b=2 --json --top 100".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Run both on one cluster, in a process of its own: Ray leaves some of its own behind."""
    kept = tmp_path_factory.mktemp("sweep") / "kept.jsonl"
    command = [sys.executable, "-P", "-c", CLUSTER + SQUARES + SWEEP, kept, *LINE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_what_a_killed_machine_had_not_finished_another_does_and_where_none_is_left_it_is_said(printed):
    error = next(line for line in printed.stdout.splitlines() if line.startswith("Ray: got no core at "))
    assert error.endswith("and continue from the journal of `resume`")


def test_a_sweep_of_which_a_machine_is_killed_prints_what_one_machine_does(printed):
    command = [sys.executable, "-P", "-m", "pipesched", *LINE, "--workers", "1"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "killed" in printed.stderr, "before all was done"
    assert json.loads(printed.stdout[printed.stdout.index("{") :]) == json.loads(alone.stdout)
