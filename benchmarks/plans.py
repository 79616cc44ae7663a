"""Plans predicted and run on emulated machines: two nodes of four devices, with slow links between the nodes.

    python benchmarks/plans.py [--nics] [--runs 5] [--out benchmarks/results/plans.md]

The synthetic model has uneven layers, as a convolutional network: large activations first, large weights last. Ranks
sleep for the time of their layers, and their messages and all-reduces are slowed to the links of the cluster. With
--nics the devices of a node share a network interface, otherwise every two devices have a link of their own.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from report import arguments_of, beside, provenance, show, within

import pipesched
from pipesched import Cluster, Link, Schedule
from pipesched.profiles.clusters import Device, of_nodes
from pipesched.profiles.costs import Compression, StageCost, StageCosts
from pipesched.schedules.transforms import ScheduleSpec

FORWARD_MS: tuple[int, ...] = (4, 6, 8, 7, 6, 6, 5, 5, 4, 4, 3, 3)
"""Milliseconds of the forward of a sample, by layer; the backward takes twice as long."""
OUTPUT_KB: tuple[int, ...] = (400, 400, 300, 200, 200, 150, 100, 100, 60, 40, 20, 0)
WEIGHT_KB: tuple[int, ...] = (20, 40, 80, 80, 160, 160, 300, 300, 600, 600, 900, 1200)
BATCH_SIZE = 32
NODE = Cluster((Device(),) * 4, intra=Link(2e-5, 1e9), inter=Link(2e-4, 1e7), origin="by hand")
SHARED = replace(NODE, nics=((0, 1, 2, 3),))
NUM_NODES = 2
HALF = Compression(convert_bytes_per_s=2e8)
LIMIT = 0.05
"""Largest relative error of a prediction."""
NUM_ORDERS = 100
"""Random orders of messages that reach an interface at one instant."""


@dataclass(frozen=True, slots=True)
class Case:
    """A plan: the schedule, cut and copies of a batch.

    Attributes:
        what: The feature that the plan shows.
        partition: Layers of each stage.
    """

    what: str
    schedule_spec: ScheduleSpec
    partition: tuple[int, ...]
    compression: Compression | None = None

    @property
    def num_microbatches(self) -> int:
        """The micro-batches of the batch, over all copies."""
        return self.schedule_spec.width * self.schedule_spec.num_microbatches

    def schedule(self) -> Schedule:
        """Return the lists of one batch."""
        num_steps = self.num_microbatches // self.schedule_spec.run(1).microbatches_per_step
        return self.schedule_spec.run(num_steps).lists(num_steps).held()

    def costs(self) -> StageCosts:
        """Return the costs of the plan's stages."""
        size = BATCH_SIZE // self.num_microbatches
        stages: list[StageCost] = []
        first = 0
        for count in self.partition:
            layers = slice(first, first + count)
            first += count
            forward_s = size * sum(FORWARD_MS[layers]) / 1e3
            stages.append(
                StageCost(
                    forward_s,
                    2 * forward_s,
                    step_s=0.002,
                    output_bytes=size * OUTPUT_KB[first - 1] * 1000,
                    weight_bytes=sum(WEIGHT_KB[layers]) * 1000,
                )
            )
        return StageCosts(tuple(stages), size, "by hand", compression=self.compression)


BALANCED = (2, 1, 1, 1, 1, 2, 2, 2)
STRAIGHT = ScheduleSpec(name="1f1b", num_ranks=8, num_microbatches=16)
WIDE = ScheduleSpec(name="1f1b", num_ranks=4, num_microbatches=16, width=2)
ROUNDS = ScheduleSpec(name="1f1b_rr", num_ranks=6, num_microbatches=16, parameters={"replicas": (2, 2, 1, 1)})
FOUR = replace(ROUNDS, num_ranks=8, parameters={"replicas": (4, 2, 1, 1)})
CASES = (
    Case("replicas 2:2:1:1, a step every round", ROUNDS, (3, 4, 2, 3)),
    Case("replicas 4:2:1:1, a step every round", FOUR, (5, 3, 2, 2)),
    Case("width 2, a copy in each node", WIDE, (3, 2, 3, 4)),
    Case("width 2, copies of a stage side by side", replace(WIDE, placement="data"), (3, 2, 3, 4)),
    Case("uneven stages", STRAIGHT, BALANCED),
    Case("uneven stages, recompute", replace(STRAIGHT, recompute="all"), BALANCED),
    Case("uneven stages, messages in half precision", STRAIGHT, BALANCED, HALF),
)


def report(node: Cluster, command: str, runs: int) -> Iterator[str]:
    """Yield each line of the report as soon as it is known."""
    cluster = of_nodes(node, NUM_NODES)
    yield from _head(command, cluster)
    yield "| plan | ranks | layers | predicted | orders of ties | measured, median | error | measured, all |"
    yield "|---|---|---|---|---|---|---|---|"
    times: dict[str, tuple[float, float]] = {}
    for case in CASES:
        schedule, costs = case.schedule(), case.costs()
        setup = pipesched.Setup(costs, cluster)
        predicted_s = pipesched.simulate(schedule, setup).makespan_s
        measured_s = pipesched.run(schedule, setup, iterations=runs).makespans_s
        times[case.what] = predicted_s, statistics.median(measured_s)
        what = f"{case.what}: {schedule.name} | {schedule.num_ranks} | {','.join(map(str, case.partition))}"
        yield f"| {what} | {beside(predicted_s, measured_s, _range_of_ties(schedule, setup))} |"
    yield ""
    yield from _verdict(times)


def _range_of_ties(schedule: Schedule, setup: pipesched.Setup) -> str:
    """Return the range of makespans if messages that start at one instant have random orders."""
    setups = [replace(setup, jitter=1e-9, seed=seed) for seed in range(NUM_ORDERS)]
    makespans_s = [pipesched.simulate(schedule, jittered).makespan_s for jittered in setups]
    low, high = (f"{bound_s * 1e3:.1f}" for bound_s in (min(makespans_s), max(makespans_s)))
    return "one" if low == high else f"{low} to {high} ms"


def _head(command: str, cluster: Cluster) -> Iterator[str]:
    yield f"# Plans, predicted and emulated: {'shared interfaces' if cluster.nics else 'links of their own'}"
    yield ""
    yield from provenance(f"plans.py {command}", os.getloadavg()[0], "gloo, 1 thread per rank")
    yield ""
    whose = "one interface of their node" if cluster.nics else "links of their own"
    assert cluster.inter is not None
    links = [
        f"{link.latency_s * 1e6:g} us and {link.bandwidth_bytes_per_s / 1e6:g} MB/s"
        for link in (cluster.intra, cluster.inter)
    ]
    yield f"{NUM_NODES} nodes of {len(NODE.devices)} devices: {links[0]} inside a node, {links[1]} between nodes, over"
    yield f"{whose}. A batch of {BATCH_SIZE} samples through {len(FORWARD_MS)} layers, whose forwards take"
    yield f"{min(FORWARD_MS)} to {max(FORWARD_MS)} ms a sample. Orders of ties: the range of {NUM_ORDERS}"
    yield "predictions with random orders of messages that start at one instant."
    yield ""


def _verdict(times: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Yield the share of errors within the limit, and the order of the plans by prediction and by measurement."""
    yield within(LIMIT, {what: predicted_s / found_s - 1 for what, (predicted_s, found_s) in times.items()})
    by_prediction, by_measurement = (sorted(times, key=lambda what: times[what][which]) for which in (0, 1))
    yield f"Fastest first, by prediction: {'; '.join(by_prediction)}."
    same = "the same" if by_prediction == by_measurement else "; ".join(by_measurement)
    yield f"By measurement: {same}."


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--nics", action="store_true", help="the devices of a node share a network interface")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    node, shown = (SHARED, "--nics ") if arguments.nics else (NODE, "")
    show(report(node, f"{shown}--runs {arguments.runs}", arguments.runs), arguments.out)


if __name__ == "__main__":
    main()
