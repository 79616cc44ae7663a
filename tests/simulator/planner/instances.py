"""Random models and machines for the planner: small, uneven, some of them short of memory."""

from __future__ import annotations

from dataclasses import replace

from pipesched.profiles.clusters import Cluster, Device, Link, of_nodes
from pipesched.profiles.costs import LayerCost, LayerMeasurement, LayerSplit, Profile, Provenance
from pipesched.simulator.planner import Request

_SIZES = (1, 2, 4)


def random_profile(chance, num_layers):
    """Layers whose time grows less than their micro-batch."""
    layers = []
    for index in range(num_layers):
        forward_s, num_bytes, is_last = chance.uniform(0.5, 2.0), chance.randint(0, 20), index == num_layers - 1
        measurements = []
        for size in _SIZES:
            seconds = forward_s * (0.5 + 0.5 * size)
            split = LayerSplit(seconds, 0.9 * seconds, 0, 5 * size, input_saved=True, output_saved=False)
            measurements.append(
                LayerMeasurement(
                    microbatch_size=size,
                    forward_s=seconds,
                    backward_s=1.9 * seconds,
                    input_bytes=0,
                    output_bytes=0 if is_last else num_bytes * size,
                    output_storage_bytes=0 if is_last else num_bytes * size,
                    saved_bytes=chance.randint(1, 4) * size,
                    working_bytes=5 * (index % 3) * size,
                    input_saved=True,
                    output_saved=False,
                    output_is_input=False,
                    split=None if index == 0 else split,
                )
            )
        weight_bytes = chance.randint(0, 40)
        layers.append(LayerCost(f"layer {index}", weight_bytes, 2 * weight_bytes, 0.1, tuple(measurements)))
    origin = Provenance("chance", "float32", 1, 0, "adam", 1, 1, 0, 2, (), "2026")
    return Profile("random", tuple(layers), origin)


def random_machines(chance):
    """One node or two, of unlike devices or not, with shared NICs or not."""
    size, is_one = chance.choice([(2, True), (2, False), (4, True), (3, False)])
    devices = tuple(Device(chance.choice([1.0, 1.0, 0.7])) for _ in range(size))
    node = Cluster(devices, Link(chance.choice([0.0, 0.05]), chance.choice([20.0, 500.0])))
    if is_one:
        return node
    inter, nics = Link(0.1, chance.choice([5.0, 100.0])), (tuple(range(size)),) if chance.random() < 0.7 else ()
    return of_nodes(replace(node, inter=inter, nics=nics), 2)


def random_request(chance, **changes):
    """A request whose answer can be found by looking at all of them."""
    cluster = random_machines(chance)
    limit = chance.choice([None, None, 150, 400])
    cluster = replace(cluster, devices=tuple(replace(device, memory_bytes=limit) for device in cluster.devices))
    request = Request(
        profile=random_profile(chance, chance.randint(4, 9)),
        cluster=cluster,
        batch_size=len(cluster.devices) * chance.choice([1, 2, 4]),
    )
    return replace(request, **changes)
