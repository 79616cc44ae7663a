"""Two nodes under torchrun, joined by a link that the kernel holds to a bandwidth: prediction beside measurement.

    python benchmarks/two_nodes.py [--runs 5] [--out benchmarks/results/two_nodes.md]      as root

The nodes are network namespaces of this machine, with two ranks each. `pipesched profile-links` measures their links
under torchrun; then ranks that sleep as long as the costs say send real messages, between the nodes over that link.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from namespaces import Node, torchrun, two_nodes
from report import arguments_of, provenance, show

from pipesched.executor.launch import Measure, RunSpec, job_to_json
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.profiles.io import load_cluster
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.simulator.engine import simulate_lists

BANDWIDTH_BYTES_PER_S = 25e6
MESSAGE_BYTES = 512 * 1024
SIZES = "1KiB,64KiB,512KiB"
OP_S = 0.020
SHARED = ((0, 1), (2, 3))
"""The ranks that share an interface."""
SCHEDULES = ("gpipe", "1f1b", "1f1b_afp", "zb_h1", "pipedream", "interleaved")


def measured_cluster(nodes: Sequence[Node], folder: Path) -> Cluster:
    """Measure the links of two ranks on each node."""
    path = folder / "cluster.json"
    torchrun(nodes, 2, ["pipesched", "profile-links", "--out", str(path), "--sizes", SIZES])
    return load_cluster(path)


def costs(schedule: Schedule) -> StageCosts:
    """Return uneven stages; F, I and W of all that a rank holds take about `OP_S` each."""
    op_s = OP_S * schedule.num_ranks / schedule.num_stages
    stages = (
        StageCost(
            forward_s=op_s * (1 + 0.25 * (s % 3)),
            backward_input_s=op_s,
            backward_weight_s=op_s,
            step_s=0.002,
            output_bytes=MESSAGE_BYTES,
        )
        for s in range(schedule.num_stages)
    )
    return StageCosts(tuple(stages), origin="by hand")


def makespans_s(nodes: Sequence[Node], schedule: Schedule, runs: int, folder: Path) -> list[float]:
    """Run the schedule on both nodes."""
    path = folder / "job.json"
    job = Measure(schedule=to_json(schedule), emulate=costs(schedule), iterations=runs)
    path.write_text(job_to_json(RunSpec(job=job, is_pinned=False)))
    found: list[float] = json.loads(torchrun(nodes, 2, ["pipesched.executor", str(path)]))["makespans_s"]
    return found


def report(runs: int) -> Iterator[str]:
    """Yield the report line by line, as it comes."""
    yield "# Two nodes, predicted and measured"
    yield ""
    with two_nodes(BANDWIDTH_BYTES_PER_S) as nodes, tempfile.TemporaryDirectory() as name:
        load = os.getloadavg()[0]
        cluster = measured_cluster(nodes, Path(name))
        yield from provenance(f"two_nodes.py --runs {runs}", load, "gloo")
        yield "Two network namespaces, an agent of torchrun with two ranks in each, joined by a veth pair with a token"
        yield f"bucket of {BANDWIDTH_BYTES_PER_S / 1e6:g} MB/s on both ends."
        yield ""
        yield from _links(cluster)
        yield ""
        yield f"Messages of {MESSAGE_BYTES // 1024} KiB; F, I and W of what a rank holds take {OP_S * 1e3:g} ms each, F"
        yield "of stages 1, 4, .. 25 % more and of stages 2, 5, .. 50 % more. The predictions use the measured links; a"
        yield "node's two ranks share its interface, which ping-pongs of one pair at a time cannot show."
        yield ""
        yield "| schedule, p = 4, m = 8 | predicted | of own interfaces | measured, median | error | measured, all |"
        yield "|---|---|---|---|---|---|"
        for each in SCHEDULES:
            schedule = build(each, 4, 8)
            predicted_s = simulate_lists(schedule, costs(schedule), replace(cluster, nics=SHARED)).makespan_s
            free_s = simulate_lists(schedule, costs(schedule), cluster).makespan_s
            measured_s = makespans_s(nodes, schedule, runs, Path(name))
            median_s = statistics.median(measured_s)
            yield (
                f"| {each} | {predicted_s * 1e3:.1f} ms | {free_s * 1e3:.1f} ms | {median_s * 1e3:.1f} ms "
                f"| {predicted_s / median_s - 1:+.1%} | {min(measured_s) * 1e3:.1f} to {max(measured_s) * 1e3:.1f} ms |"
            )


def _links(cluster: Cluster) -> Iterator[str]:
    assert cluster.inter is not None
    for where, link in (("inside a node", cluster.intra), ("between the nodes", cluster.inter)):
        yield (
            f"`pipesched profile-links` under torchrun, {where}: {link.latency_s * 1e6:.0f} us, "
            f"{link.bandwidth_bytes_per_s / 1e6:.1f} MB/s (medians over the pairs)."
        )


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    show(report(arguments.runs), arguments.out)


if __name__ == "__main__":
    main()
