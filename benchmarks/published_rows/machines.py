"""The machines of published runs: data sheets of GPUs, nodes and networks, each with its origin."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from published_rows.row import PublishedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a published run.

    Attributes:
        patterns: Words, all of which occur in the column gpu, in lower case.
        gpu: Name of the data sheet of the GPU.
        gpus_per_node: GPUs that NVLink or its like connects.
        network_bytes_per_s: Bandwidth of the network for each GPU, one way [bytes/s].
        board_gpus: GPUs that NVLink connects, where a node has several boards of them; otherwise None.
        board_bytes_per_s: Bandwidth between these boards for each GPU, one way [bytes/s].
        collective_share: Share of the network's bandwidth that collectives reach, beside messages.
        network_latency_s: Time of a hop of a collective between nodes, besides its bytes.
        origin: Origin of the numbers.
    """

    patterns: tuple[str, ...]
    gpu: str
    gpus_per_node: int
    network_bytes_per_s: float
    origin: str
    collective_share: float = 1.0
    network_latency_s: float = 1e-5
    board_gpus: int | None = None
    board_bytes_per_s: float = 0.0


MACHINES = (
    Machine(
        patterns=("a100", "jean zay"),
        gpu="a100",
        gpus_per_node=8,
        network_bytes_per_s=6.25e9,
        board_gpus=4,
        board_bytes_per_s=16e9,
        collective_share=0.5,
        origin="8 GPUs per node, 4 NVLinks between GPUs, so two boards of 4, and 4 Omni-Path links of 100 Gb/s: "
        "bigscience, train/tr11-176B-ml/README.md; between boards 16 GB/s, from 25 February on, when PCI Express and "
        "NUMA were improved (chronicles-prequel.md), 24 GB/s, and half of the network for collectives: fitted to half "
        "of the runs",
    ),
    Machine(
        patterns=("a100", "4x100gb"),
        gpu="a100",
        gpus_per_node=8,
        network_bytes_per_s=6.25e9,
        origin="8 GPUs and 4 RoCE links of 100 Gb/s per node: InternEvo, doc/en/train_performance.md",
    ),
    Machine(
        patterns=("a100", "40gb"),
        gpu="a100-40gb",
        gpus_per_node=8,
        network_bytes_per_s=25e9,
        origin="8 GPUs per node, 8 links of 200 Gb/s (DGX A100); llm-foundry does not name its network",
    ),
    Machine(
        patterns=("a100",),
        gpu="a100",
        gpus_per_node=8,
        network_bytes_per_s=25e9,
        origin="DGX A100 data sheet: 8 GPUs, 8 links of 200 Gb/s",
    ),
    Machine(
        patterns=("h100", "96gb"),
        gpu="h100-96gb",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        origin="8 GPUs per node, 8 links of 400 Gb/s (Grand Teton: engineering.fb.com, 2024-03-12)",
    ),
    Machine(
        patterns=("h100-80gb",),
        gpu="h100",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        network_latency_s=400e-6,
        origin="p5.48xlarge, EFA of 3,200 Gb/s per node; time of a hop fitted to half of the runs whose tensor "
        "parallelism crosses nodes",
    ),
    Machine(
        patterns=("h100",),
        gpu="h100",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        origin="8 GPUs per node, 400 Gb/s per GPU: DGX H100 data sheet; EFA of 3,200 Gb/s per node on p5.48xlarge",
    ),
    Machine(
        patterns=("h800",),
        gpu="h800",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        origin="8 GPUs and 8 links of 400 Gb/s per node: arXiv:2412.19437, section 3.1",
    ),
    Machine(
        patterns=("h200",),
        gpu="h200",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        origin="DGX H200 data sheet: 8 GPUs, 8 links of 400 Gb/s",
    ),
    Machine(
        patterns=("h20",),
        gpu="h20",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        origin="8 GPUs per node, 400 Gb/s per GPU",
    ),
    Machine(
        patterns=("gb200",),
        gpu="gb200",
        gpus_per_node=72,
        network_bytes_per_s=50e9,
        origin="GB200 NVL72: 72 GPUs share NVLink, 400 Gb/s per GPU beyond",
    ),
    Machine(
        patterns=("gb300",),
        gpu="gb300",
        gpus_per_node=72,
        network_bytes_per_s=100e9,
        origin="GB300 NVL72: 72 GPUs share NVLink, 800 Gb/s per GPU beyond",
    ),
    Machine(
        patterns=("b200",),
        gpu="b200",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        origin="DGX B200 data sheet: 8 GPUs, 8 links of 400 Gb/s",
    ),
    Machine(
        patterns=("b300",),
        gpu="b300",
        gpus_per_node=8,
        network_bytes_per_s=100e9,
        origin="DGX B300 data sheet: 8 GPUs, 8 links of 800 Gb/s",
    ),
    Machine(
        patterns=("mi300x",),
        gpu="mi300x",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        origin="AMD Instinct MI300X data sheet: 192 GB, 8 GPUs per node; network supposed at 400 Gb/s per GPU",
    ),
    Machine(
        patterns=("mi355x",),
        gpu="mi355x",
        gpus_per_node=8,
        network_bytes_per_s=50e9,
        origin="AMD Instinct MI355X data sheet: 288 GB, 8 GPUs per node; network supposed at 400 Gb/s per GPU",
    ),
)
"""Machines in the order of their search."""


BETTER_BOARDS_BYTES_PER_S = 24e9
"""Bandwidth between the boards of Jean Zay from 25 February 2022 on, for each GPU, one way; fitted."""
_BETTER_BOARDS = re.compile(r"\b0(2-2[5-9]|[3-9]-\d\d)\b")


def machine_of(run: PublishedRun) -> Machine:
    """Return the machine of a run.

    Raises:
        ValueError: No machine of the table matches.
    """
    name = run.gpu.lower()
    for machine in MACHINES:
        if all(pattern in name for pattern in machine.patterns):
            has_better_boards = machine.board_gpus and _BETTER_BOARDS.search(run.note)
            return replace(machine, board_bytes_per_s=BETTER_BOARDS_BYTES_PER_S) if has_better_boards else machine
    raise ValueError(f"gpu is {run.gpu!r}; expected a name with one of {', '.join(sorted({m.gpu for m in MACHINES}))}")
