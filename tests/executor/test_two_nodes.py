"""Two nodes: network namespaces joined by a shaped link, each with an agent of torchrun."""

import json
import os
import re
import signal
import time

import pytest

from benchmarks.namespaces import NotAllowed, start_torchrun, torchrun, two_nodes
from pipesched.executor.launch import job_to_json
from pipesched.executor.training import checkpoint_folder, find_checkpoint, read_index
from pipesched.profiles.io import load_cluster
from pipesched.schedules.builders import build
from pipesched.schedules.formats import read_timeline
from tests.executor.checkpoint_runs import a_job, listening, locally
from tests.executor.pipelines import MLP, job, whole_model
from tests.processes import PATIENCE_S, eventually, processes_in

BANDWIDTH_BYTES_PER_S = 12.5e6

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def nodes():
    try:
        with two_nodes(BANDWIDTH_BYTES_PER_S) as made:
            yield made
    except NotAllowed as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_two_ranks_on_each_of_two_nodes_have_the_losses_of_the_whole_model(nodes, tmp_path):
    schedule = build("1f1b", 4, 6)
    path, out = tmp_path / "job.json", tmp_path / "measured.json"
    path.write_text(job_to_json(job(schedule, is_pinned=False)))
    printed = json.loads(torchrun(nodes, 2, ["-m", "pipesched.executor", str(path), "--out", str(out)]))
    module, inputs, targets, loss = whole_model(MLP, 12)
    expected = [loss(module(inputs[i : i + 2]), targets[i : i + 2]).item() for i in range(0, 12, 2)]
    assert printed["losses"] == pytest.approx(expected, rel=1e-12)
    assert read_timeline(out).rank_to_device == (0, 1, 2, 3)


def test_links_between_nodes_are_measured_as_slow_as_they_are_made(nodes, tmp_path):
    path = tmp_path / "cluster.json"
    measure = ["--out", str(path), "--sizes", "262144", "524288", "--repeats", "3"]
    torchrun(nodes, 1, ["-m", "pipesched.profiles.measuring.link_profiler", *measure])
    cluster = load_cluster(path)
    assert [device.node for device in cluster.devices] == [0, 1]
    # a busy machine delays messages, and may tilt the line through both; none is faster than the bucket lets it pass
    assert cluster.link(0, 1).transfer_s(524288) > 0.95 * 262144 / BANDWIDTH_BYTES_PER_S


@pytest.mark.parametrize(
    ("fault", "told", "num_told"),
    [
        ("nan:rank=1,op=1F2", r"rank 1 failed at 1F2 \(micro-batch 2\): got NaN in the (output|loss) of .*", 2),
        ("kill:rank=1,op=1B2", r"rank 1 failed (at|before) .*: nothing has been heard of its process for .*", 1),
        ("stop:rank=0,op=0F3", r"rank 0 failed (at|before) .*: nothing has been heard of its process for .*", 2),
    ],
)
def test_a_rank_alone_on_its_node_is_named_on_the_other(nodes, tmp_path, fault, told, num_told):
    """Nobody else on its machine can report a rank that is killed or stopped; one that continues prints the report."""
    path = tmp_path / "job.json"
    spec = job(build("1f1b", 2, 4), is_pinned=False, timeout_s=2.0, inject=(fault,), is_finite_checked=True)
    path.write_text(job_to_json(spec))
    agents = start_torchrun(nodes, 1, ["-m", "pipesched.executor", str(path)], {"TMPDIR": str(tmp_path)})
    errors = {1: agents[1].communicate(timeout=PATIENCE_S)[1]}
    if fault.startswith("stop"):
        for rank in listening(agents[0].pid, signal.SIGTERM):
            os.kill(rank, signal.SIGCONT)
    errors[0] = agents[0].communicate(timeout=PATIENCE_S)[1]
    printed = {
        node: [line.removeprefix("executor: ") for line in error.splitlines() if line.startswith("executor: ")]
        for node, error in errors.items()
    }
    lines = [line for node in (0, 1) for line in printed[node]]
    assert ([agent.returncode for agent in agents], len(lines)) == ([1, 1], num_told), errors
    assert all(re.fullmatch(told, line) for line in lines), lines
    assert processes_in(tmp_path) == []
    reports = [*tmp_path.glob("pipesched-standstill-*")]
    assert len(reports) == fault.startswith("stop")
    for report in reports:
        assert len(re.findall(r"^rank 1:\n.*File ", report.read_text(), re.MULTILINE | re.DOTALL)) > 0


def test_a_rank_on_each_node_is_drained_at_one_step_where_one_of_them_is_told_to_leave(nodes, tmp_path):
    given = {"every": 100_000, "model": "mlp:width=8,layers=6"}
    (tmp_path / "job.json").write_text(job_to_json(a_job("pipedream", tmp_path / "cut", steps=200_000, **given)))
    agents = start_torchrun(nodes, 1, ["-m", "tests.executor.soon_drained", str(tmp_path / "job.json")])
    assert eventually(lambda: all(listening(agent.pid) for agent in agents))
    time.sleep(0.5)
    os.kill(listening(agents[1].pid)[0], signal.SIGUSR1)
    errors = [agent.communicate(timeout=PATIENCE_S)[1] for agent in agents]
    assert any("exitcode  : 75" in told for told in errors), errors  # the other may lose the store first
    _, index = find_checkpoint(tmp_path / "cut")
    assert index.steps < 100_000
    locally(a_job("pipedream", tmp_path / "whole", steps=index.steps, **given))
    assert read_index(checkpoint_folder(tmp_path / "whole", index.steps)).files == index.files
