"""Which GPU each rank gets, and training on streams."""

from __future__ import annotations

import os

import pytest
import torch

from pipesched.executor.core import Batch
from pipesched.executor.launch import RunSpec, Train
from pipesched.executor.runs import local_runner, local_training, train_locally, training_of, training_setup
from pipesched.executor.runs.local_runner import devices_of, make_streams
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.pipelines import CPU, MLP, even_bounds
from tests.executor.race_detector import RaceDetector, RacingStreams


@pytest.mark.parametrize(
    ("rank_to_device", "num_gpus", "gpus"),
    [
        ((0, 1, 2, 3), 1, (0, 0, 0, 0)),
        ((0, 1, 2, 3), 4, (0, 1, 2, 3)),
        ((0, 1, 2, 3), 8, (0, 1, 2, 3)),
        ((0, 1, 2, 3), 2, (0, 1, 0, 1)),
        ((0, 1, 0, 1), 4, (0, 1, 0, 1)),
        ((5, 7, 5), 2, (0, 1, 0)),
    ],
)
def test_ranks_get_gpus_in_the_order_of_their_devices(monkeypatch, rank_to_device, num_gpus, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    assert devices_of(rank_to_device, "cuda") == [torch.device("cuda", gpu) for gpu in gpus]


def test_ranks_on_cpus_share_the_cpu():
    assert devices_of((0, 1, 2), "cpu") == [CPU] * 3


@pytest.mark.parametrize("given", [{}, {"CUDA_DEVICE_MAX_CONNECTIONS": "4", "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}])
def test_streams_have_queues_of_their_own_unless_the_user_says_how_many(monkeypatch, given):
    expected = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"} | given
    for name in expected:
        monkeypatch.setenv(name, given.get(name, ""))
        if not given:
            monkeypatch.delenv(name)
    monkeypatch.setattr(local_runner, "CudaStreams", lambda device, stream: device)
    assert [*make_streams([torch.device("cuda", 0)] * 2)] == [0, 1]
    assert {name: os.environ[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["1f1b", "pipedream", "avgpipe", "xpipe"])
def test_training_on_streams_has_no_race_and_the_same_losses(monkeypatch, name):
    spec = ScheduleSpec(name=name, num_ranks=2, num_microbatches=2)
    run = RunSpec(
        job=Train(schedule_spec=spec, num_steps=3, batch_size=4), model=MLP, optimizer="momentum", dtype="float64",
        bounds=even_bounds(6, spec.run(3).lists(3).num_stages),
    )  # fmt: skip

    def trained():
        training = training_of(run)
        return train_locally(training, held_out_every=1)

    plain, detector = trained(), RaceDetector()
    training = training_of(run)
    feeds = training.batch(training.run.lists(3), CPU)  # drawn before: on a GPU each rank copies its own from the host
    drawn = Batch([*feeds.inputs], [*feeds.targets])
    monkeypatch.setattr(training_setup.TrainingSetup, "batch", lambda self, lists, device, first: drawn)

    def streams(devices, are_green):
        return {rank: RacingStreams(detector) for rank in range(len(devices))}

    monkeypatch.setattr(local_training, "make_streams", streams)
    monkeypatch.setattr(training_setup, "synchronize", lambda devices: detector.synchronize(None))
    with detector:
        streamed = trained()
    assert detector.num_ops > 50
    assert streamed.steps == plain.steps
    assert streamed.looks == plain.looks
