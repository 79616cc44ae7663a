"""Two nodes: network namespaces joined by a shaped link, each with an agent of torchrun."""

import os
import re
import signal

import pytest

from benchmarks.namespaces import NotAllowed, start_torchrun, torchrun, two_nodes
from pipesched.executor.launch import job_to_json
from pipesched.profiles.io import load_cluster
from pipesched.schedules.builders import build
from tests.executor.checkpoint_runs import listening
from tests.executor.pipelines import job
from tests.processes import PATIENCE_S, processes_in

BANDWIDTH_BYTES_PER_S = 12.5e6

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def nodes():
    try:
        with two_nodes(BANDWIDTH_BYTES_PER_S) as made:
            yield made
    except NotAllowed as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_links_between_nodes_are_measured_as_slow_as_they_are_made(nodes, tmp_path):
    path = tmp_path / "cluster.json"
    measure = ["--out", str(path), "--sizes", "262144", "524288", "--repeats", "3"]
    torchrun(nodes, 1, ["-m", "pipesched.profiles.measuring.link_profiler", *measure])
    cluster = load_cluster(path)
    assert [device.node for device in cluster.devices] == [0, 1]
    # a busy machine delays messages, and may tilt the line through both; none is faster than the bucket lets it pass
    assert cluster.link(0, 1).transfer_s(524288) > 0.95 * 262144 / BANDWIDTH_BYTES_PER_S


def test_a_stopped_rank_alone_on_its_node_is_named_on_the_other(nodes, tmp_path):
    """Nobody else on its machine can report it; when it continues it prints the report too."""
    told = r"rank 0 failed (at|before) .*: nothing has been heard of its process for .*"
    path = tmp_path / "job.json"
    spec = job(build("1f1b", 2, 4), is_pinned=False, timeout_s=2.0, inject=("stop:rank=0,op=0F3",))
    path.write_text(job_to_json(spec))
    agents = start_torchrun(nodes, 1, ["-m", "pipesched.executor", str(path)], {"TMPDIR": str(tmp_path)})
    errors = {1: agents[1].communicate(timeout=PATIENCE_S)[1]}
    for rank in listening(agents[0].pid, signal.SIGTERM):
        os.kill(rank, signal.SIGCONT)
    errors[0] = agents[0].communicate(timeout=PATIENCE_S)[1]
    printed = {
        node: [line.removeprefix("executor: ") for line in error.splitlines() if line.startswith("executor: ")]
        for node, error in errors.items()
    }
    lines = [line for node in (0, 1) for line in printed[node]]
    assert ([agent.returncode for agent in agents], len(lines)) == ([1, 1], 2), errors
    assert all(re.fullmatch(told, line) for line in lines), lines
    assert processes_in(tmp_path) == []
    (report,) = tmp_path.glob("pipesched-standstill-*")
    assert len(re.findall(r"^rank 1:\n.*File ", report.read_text(), re.MULTILINE | re.DOTALL)) > 0
