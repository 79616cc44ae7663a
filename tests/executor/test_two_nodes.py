"""Two nodes: network namespaces joined by a shaped link, each with an agent of torchrun."""

import json

import pytest

from benchmarks.namespaces import NotAllowed, torchrun, two_nodes
from pipesched.executor.launch import job_to_json
from pipesched.profiles.io import load_cluster
from pipesched.schedules.builders import build
from pipesched.schedules.formats import read_timeline
from tests.executor.pipelines import MLP, job, whole_model

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
