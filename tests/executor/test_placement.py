"""Which process runs which rank: the one whose device it is on."""

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from pipesched.executor.launch import job_to_json
from pipesched.executor.launch.fork_client import fork
from pipesched.executor.launch.rank_device import ranks_of_processes
from pipesched.schedules.builders import build
from pipesched.schedules.formats import read_timeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import place_copies, replicate
from tests.executor.pipelines import job, whole_model

ROOT = Path(__file__).parents[2]
MODEL = "tests.executor.test_placement:marking"


def marking():
    """Two layers that print, each of which leaves a file that says what was run where."""
    import torch
    from torch import nn

    class Marking(nn.Linear):
        def __init__(self, number):
            super().__init__(4, 4)
            self.number = number

        def forward(self, x):
            print("stage", self.number)
            if self.training and "MARKS" in os.environ:
                node, device = os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]
                (Path(os.environ["MARKS"]) / f"stage{self.number} node{node} device{device}").touch()
            return super().forward(x)

    def batch(num_samples, seed):
        x = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(seed))
        return x, x.flip(1)

    return [lambda: Marking(0), lambda: Marking(1)], nn.functional.mse_loss, batch


def test_processes_are_numbered_as_the_devices_are():
    copies = replicate(build("1f1b", 4, 4), 2)
    assert ranks_of_processes(copies.rank_to_device) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert ranks_of_processes(place_copies(copies, "data", 2).rank_to_device) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert ranks_of_processes((2, 0, 3, 1)) == [1, 3, 0, 2]


def test_ranks_of_one_device_follow_each_other():
    assert ranks_of_processes(build("avgpipe", 2, 4).rank_to_device) == [0, 2, 1, 3]


def two_nodes(folder):
    """Run the job in `folder` in two processes with the environment of two nodes; return the output of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    given = os.environ | meet | sizes | {"PYTHONPATH": str(ROOT), "MARKS": str(folder / "marks")}
    what = [str(folder / "job.json"), "--trust-model", "--out", str(folder / "out.json")]
    logs = [folder / "log0", folder / "log1"]
    nodes = [fork(what, given | {"RANK": str(k), "GROUP_RANK": str(k)}, log) for k, log in enumerate(logs)]
    assert [node.wait() for node in nodes] == [0, 0], [log.read_text() for log in logs]
    return logs[0].read_text().splitlines()[-1]


@pytest.mark.distributed
def test_each_rank_runs_where_its_device_is_and_what_is_measured_names_ranks(tmp_path):
    # rank 0 is not where the ranks meet and results are written
    schedule = replace(build("1f1b", 2, 3), rank_to_device=(1, 0))
    (tmp_path / "marks").mkdir()
    (tmp_path / "job.json").write_text(job_to_json(job(schedule, MODEL)))
    said = two_nodes(tmp_path)
    marks = sorted(path.name for path in (tmp_path / "marks").iterdir())
    assert marks == ["stage0 node1 device0", "stage1 node0 device0"]
    timeline = read_timeline(tmp_path / "out.json")
    assert (timeline.source, timeline.rank_to_device) == ("measured", (1, 0))
    assert json.loads(said)["makespans_s"] == [pytest.approx(timeline.makespan_s)]
    assert [span.op for span in timeline.spans] == [op for row in lower(schedule).ops for op in row]
    assert [span.rank for span in timeline.spans] == [rank for rank, row in enumerate(lower(schedule).ops) for _ in row]
    module, inputs, targets, loss = whole_model(MODEL, 6)
    expected = [loss(module(inputs[i : i + 2]), targets[i : i + 2]).item() for i in (0, 2, 4)]
    assert json.loads(said)["losses"] == pytest.approx(expected, rel=1e-12)
