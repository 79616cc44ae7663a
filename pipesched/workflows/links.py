"""The links between processes of this machine, measured by ping-pong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from pipesched.executor import RankFailed
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.io import load_cluster

_POLL_S = 0.02


def profile_links(
    num_ranks: int = 2,
    *,
    backend: Literal["gloo", "nccl"] = "gloo",
    sizes_bytes: Sequence[int] | None = None,
    repeats: int = 20,
) -> Cluster:
    """Measure the link of every pair of ranks, one process each on this machine.

    Args:
        num_ranks: At least 2.
        backend: ``gloo``, or ``nccl`` with a GPU per rank.
        sizes_bytes: Of the messages; None: 1 KiB to 4 MiB.
        repeats: Times that each is measured, of which the median counts.

    Returns:
        A device per rank, with the measured links between them.

    Raises:
        RankFailed: A rank failed, as it does where an argument is out of range; with its own words.
    """
    from pipesched.executor.launch import job_folder, started

    words = ["--backend", backend, "--repeats", str(repeats)]
    if sizes_bytes is not None:
        words += ["--sizes", *map(str, sizes_bytes)]
    with job_folder() as folder:
        out = folder / "cluster.json"
        words += ["--out", str(out), "--meet", f"file://{folder.absolute()}/store"]
        module = "pipesched.profiles.measuring.link_profiler"
        with started(num_ranks, module, words, folder, is_fresh=backend == "nccl") as processes:
            codes = [process.poll() for process in processes]
            while None in codes and not any(codes):
                time.sleep(_POLL_S)
                codes = [process.poll() for process in processes]
        if not any(codes):
            return load_cluster(out)
        logs = [folder / f"log{rank}" for rank, code in enumerate(codes) if code]
        lines = "\n".join(log.read_text(errors="replace") for log in logs if log.exists()).splitlines()
    said = next((line for line in lines if line.startswith("links:")), lines[-1] if lines else "profile-links failed")
    raise RankFailed(said)
