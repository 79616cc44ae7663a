"""A model made by hand: an op takes a fixed time and some per sample, so that small micro-batches fill no device."""

from dataclasses import replace

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.simulator.tuner import Problem
from tests.profiles.hand_profiles import layer, measurement, profile

SIZES = (1, 2, 4, 8)


def model(num_layers=6):
    layers = []
    for index in range(num_layers):
        sizes = [measurement(n, 1.0 + 0.1 * (index + 1) * n, 2.0 + 0.3 * n) for n in SIZES]
        layers.append(layer(*sizes, name=f"layer{index}", weight_bytes=1000, optimizer_bytes=2000))
    measured = profile(*layers)
    return replace(measured, provenance=replace(measured.provenance, kind="cuda"))


def problem(batch_size=8, num_devices=3, memory_bytes=None, link=None, **fields):
    cluster = Cluster((Device(memory_bytes=memory_bytes),) * num_devices, Link(0.1, 100.0) if link is None else link)
    return Problem(model(), batch_size, cluster, **fields)
