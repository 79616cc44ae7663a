"""Two nodes under torchrun, joined by a link whose bandwidth the kernel limits: prediction beside measurement.

    python benchmarks/two_nodes.py [--runs 5] [--out benchmarks/results/two_nodes.md]      as root

The nodes are network namespaces of this machine, with two ranks each. `pipesched profile-links` measures their links
under torchrun. Then ranks sleep for the time of their ops and send real messages, between the nodes over this link.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from emulated_stages import uneven_stages
from namespaces import Node, torchrun, two_nodes
from report import arguments_of, beside, provenance, show

import pipesched
from pipesched import Cluster, build
from pipesched.profiles.io import load_cluster

BANDWIDTH_BYTES_PER_S = 25e6
MESSAGE_BYTES = 512 * 1024
SIZES = "1KiB,64KiB,512KiB"
OP_S = 0.020
SHARED = ((0, 1), (2, 3))
"""The ranks that share an interface."""
COUNTS = (4, 8)
SCHEDULES = ("gpipe", "1f1b", "1f1b_afp", "zb_h1", "pipedream", "interleaved")


def measured_cluster(nodes: Sequence[Node], folder: Path) -> Cluster:
    """Measure the links of two ranks on each node."""
    path = folder / "cluster.json"
    torchrun(nodes, 2, ["-m", "pipesched", "profile-links", "--out", str(path), "--sizes", SIZES])
    return load_cluster(path)


def run_as_rank(name: str, runs: int) -> None:
    """Run the schedule in this process as a rank of torchrun; rank 0 prints the makespans."""
    schedule = build(name, *COUNTS)
    costs = uneven_stages(schedule, OP_S, MESSAGE_BYTES)
    result = pipesched.run(schedule, costs, iterations=runs, is_pinned=False)
    if os.environ["RANK"] == "0":
        print(json.dumps(result.makespans_s))


def report(runs: int) -> Iterator[str]:
    """Yield each line of the report as soon as it is known."""
    yield "# Two nodes, predicted and measured"
    yield ""
    with two_nodes(BANDWIDTH_BYTES_PER_S) as nodes, tempfile.TemporaryDirectory() as folder:
        load = os.getloadavg()[0]
        cluster = measured_cluster(nodes, Path(folder))
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
        for name in SCHEDULES:
            schedule = build(name, *COUNTS)
            costs = uneven_stages(schedule, OP_S, MESSAGE_BYTES)
            predicted_s, free_s = (
                pipesched.simulate(schedule, pipesched.Setup(costs, machines)).makespan_s
                for machines in (replace(cluster, nics=SHARED), cluster)
            )
            measured_s = json.loads(torchrun(nodes, 2, [__file__, "--rank", name, "--runs", str(runs)]))
            yield f"| {name} | {beside(predicted_s, measured_s, f'{free_s * 1e3:.1f} ms')} |"


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
    parser.add_argument("--rank", metavar="SCHEDULE", help="run this one, started by torchrun")
    arguments = parser.parse_args()
    if arguments.rank:
        run_as_rank(arguments.rank, arguments.runs)
    else:
        show(report(arguments.runs), arguments.out)


if __name__ == "__main__":
    main()
