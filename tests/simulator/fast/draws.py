"""Random lists, costs, machines and options, for holding the engines to one another."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple

from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs import Compression, StageCosts
from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.builders.avgpipe import avgpipe
from pipesched.schedules.lowering import lower, lower_for_torch
from pipesched.schedules.ops import Op, Recv, computes, needs
from pipesched.schedules.transforms import recompute, replicate, with_step_barrier
from pipesched.simulator import NetworkOptions
from tests.schedules.edits import mutant, reduced_early
from tests.strategies import random_cluster, random_costs


def received_late(schedule: Schedule) -> Schedule:
    """Post each Recv only right before the op that needs its message, so that it holds its transfer back."""
    rows = []
    for row in schedule.ops:
        recvs = {op.message: op for op in row if isinstance(op, Recv)}
        late: list[Op] = []
        for op in row:
            wanted = [m for part in computes(op) for m in needs(part, schedule.num_stages) if m in recvs]
            late += [recvs.pop(message) for message in wanted]
            late += [] if isinstance(op, Recv) else [op]
        rows.append(late)
    return make_schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, rows)


def waiting_for_all(schedule: Schedule) -> Schedule:
    """Let the Steps wait for all stages, if that is possible."""
    try:
        return with_step_barrier(schedule)
    except ScheduleError:
        return schedule


def random_lists(chance: random.Random) -> Schedule:
    """Draw lists of the catalogue, of several pipelines, of replicas, or changed ones; some share devices."""
    while True:
        try:
            kind = chance.choice(["mutant", "pipelines", "replicas", "recomputed", "torch", "late", "early", "usual"])
            if kind == "mutant":
                return mutant(chance.randint(0, 10**6))[1]
            if kind == "pipelines":
                number = chance.randint(1, 3)
                return lower(avgpipe(chance.randint(1, 3), number * chance.randint(1, 5), number, chance.randint(0, 2)))
            schedule = build(chance.choice(list(CATALOGUE)), chance.randint(1, 5), chance.randint(1, 8))
            if kind == "recomputed":
                schedule = recompute(schedule, None, chance.choice(("early", "late")))
            if kind == "torch":
                return lower_for_torch(schedule)
            schedule = lower(reduced_early(schedule) if kind == "early" else schedule)
            if kind == "replicas":
                schedule = replicate(schedule, chance.randint(2, 3))
            if kind == "late":
                schedule = received_late(schedule)
            num_devices = max(1, schedule.num_ranks - chance.choice([0, 0, 0, 1, 2]))
            return replace(schedule, rank_to_device=tuple(d % num_devices for d in schedule.rank_to_device))
        except ScheduleError:  # these counts are not for this schedule, or it cannot be changed so
            continue


def random_machines(chance: random.Random, num_devices: int) -> Cluster:
    """Draw nodes with or without shared NICs, and devices and links with or without hand-over."""
    cluster, num_nodes = random_cluster(chance, num_devices), chance.randint(1, 3)
    devices = tuple(
        replace(device, node=index * num_nodes // num_devices, op_s=chance.choice([0.0, chance.uniform(0, 0.1)]))
        for index, device in enumerate(cluster.devices)
    )
    if chance.random() < 0.5:  # so that much happens at the same time
        devices = tuple(replace(device, speed=1.0, op_s=0.0) for device in devices)
    nodes = [[index for index, device in enumerate(devices) if device.node == node] for node in range(num_nodes)]
    nics = tuple(tuple(members) for members in nodes if members and chance.random() < 0.5)
    kept = {"send_s": 0.1, "send_s_per_byte": 0.001, "post_s": chance.choice([0.0, 0.05]), "receive_s": 0.02}
    intra = replace(cluster.intra, **(kept if chance.random() < 0.3 else {}))
    inter = chance.choice([None, Link(chance.uniform(0, 1), chance.choice([10.0, 25.0]))])
    links = cluster.links if chance.random() < 0.5 else ()
    return replace(cluster, devices=devices, intra=intra, inter=inter, nics=nics, links=links)


class Draw(NamedTuple):
    """What both engines are asked.

    Attributes:
        more: The rest of what `simulate_lists` takes by name.
    """

    schedule: Schedule
    costs: StageCosts
    cluster: Cluster
    more: dict[str, Any]


def drawn(seed: int) -> Draw:
    """Draw a schedule, costs, a cluster and options."""
    chance = random.Random(seed)
    schedule = random_lists(chance)
    costs = random_costs(chance, schedule.num_stages)
    if chance.random() < 0.3:  # so that much happens at the same time
        alike = replace(costs.stages[0], forward_s=1.0, backward_s=2.0, backward_input_s=1.0, backward_weight_s=1.0)
        costs = replace(costs, stages=(replace(alike, output_bytes=10),) * schedule.num_stages)
    if chance.random() < 0.2:
        costs = replace(costs, compression=Compression(4, 50.0))
    network = NetworkOptions(
        chance.choice(["rendezvous", "eager"]),
        chance.choice(["posted", "posted", "blocking"]),
        chance.choice([None, 5, 7]),
        chance.choice([0.0, 0.0, 0.5]),
    )
    more: dict[str, Any] = {"network": network}
    if chance.random() < 0.3:
        more |= {"jitter": chance.choice([0.1, 0.5]), "seed": chance.randint(0, 5)}
    cluster = random_machines(chance, max(schedule.rank_to_device) + 1)
    return Draw(waiting_for_all(schedule) if chance.random() < 0.3 else schedule, costs, cluster, more)
