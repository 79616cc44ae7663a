"""Measure latency and bandwidth between ranks by ping-pong, or (``--slowdown``) the slowdown of computing by messages.

Under torchrun: ``torchrun ... -m pipesched.profiles.measuring.link_profiler``.

Every pair of ranks sends messages alone while the others wait. A message's time is half of the median round trip;
latency and bandwidth of a link are fitted to the times of several message sizes.

Messages slow the computing of their ranks: gloo moves them in a thread on the core of the rank, NCCL by kernels on the
GPU of the rank. The slowdown compares the same multiplications, timed alone and beside messages in turn, so that a
drift of the machine cancels:

    round   alone ──── rank 0 sends ──── alone ──── rank 1 sends
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist

from pipesched.profiles import Carrier, ProfileError
from pipesched.profiles.clusters import Cluster, cluster_of, fit_link
from pipesched.profiles.io import save_json
from pipesched.profiles.processes import end_with, open_sockets, pin, strangers
from pipesched.schedules.common import LONGEST_S, printable

_MATRIX_SIZE = {"cpu": 128, "cuda": 1024}
"""Size of the square matrices of the multiplications, which take about a tenth of a millisecond."""
_ALONE = 200
"""Number of multiplications without a message."""
_MESSAGES = 40
"""Number of messages of one rank in a round."""


def measure_slowdown(num_bytes: int, rounds: int, device: torch.device) -> float:
    """Return the extra time of computing while messages travel between ranks 0 and 1, as a share of the time alone.

    A negative result counts as 0. Call the function on both ranks of an initialised process group of two.

    Args:
        num_bytes: Size of the messages.
        rounds: Number of rounds; the median of their ratios counts.
        device: Device of the computations and the messages.

    Raises:
        ProfileError: The number of ranks is not two.
    """
    if dist.get_world_size() != 2:
        raise ProfileError(f"links: got {dist.get_world_size()} ranks that compute beside messages, expected 2")
    matrix = torch.ones(_MATRIX_SIZE[device.type], _MATRIX_SIZE[device.type], device=device)
    out = torch.empty_like(matrix)

    def work() -> None:
        torch.mm(matrix, matrix, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    ratios = []
    for _ in range(rounds + 1):
        for sender in (0, 1):
            dist.barrier()
            alone_s = _alone_s(work)
            dist.barrier()
            ratios.append(_beside_s(work, sender, torch.zeros(num_bytes, dtype=torch.uint8, device=device)) / alone_s)
    ratio = torch.tensor(
        [statistics.median(ratios[2:])], dtype=torch.float64, device=device
    )  # the first round warms up
    dist.all_reduce(ratio)
    return max(0.0, ratio.item() / 2 - 1.0)


def _alone_s(work: Callable[[], None]) -> float:
    begun_s = time.perf_counter()
    for _ in range(_ALONE):
        work()
    return (time.perf_counter() - begun_s) / _ALONE


def _beside_s(work: Callable[[], None], sender: int, buffer: torch.Tensor) -> float:
    """Return the mean time of `work` while messages go from `sender` to the other rank, one after another [s]."""
    is_sender = dist.get_rank() == sender

    def messages() -> None:
        if buffer.is_cuda:
            torch.cuda.set_device(buffer.device)  # a thread begins on GPU 0
        for _ in range(_MESSAGES):
            if is_sender:
                dist.send(buffer, 1 - sender)
            else:
                dist.recv(buffer, sender)

    thread, count, begun_s = threading.Thread(target=messages), 0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        work()
        count += 1
    thread.join()
    return (time.perf_counter() - begun_s) / max(1, count)


SIZES_BYTES = (1024, 16 * 1024, 128 * 1024, 1024**2, 4 * 1024**2)


def measure_links(
    *,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    repeats: int = 20,
    warmup: int = 5,
    device: torch.device | str = "cpu",
) -> Cluster:
    """Measure the link of every pair of ranks; call the function on all ranks of an initialised process group.

    A wait takes no longer than the timeout of the group.

    Args:
        sizes_bytes: At least two message sizes.
        repeats: Measured round trips of each size and pair.
        warmup: Round trips before them.
        device: Device of the messages.

    Returns:
        The same cluster on every rank: one device per rank.

    Raises:
        ProfileError: There is only one rank, or an argument is out of range.
    """
    size = dist.get_world_size()
    if size < 2:
        raise ProfileError(
            f"links: got {size} rank, expected at least 2; start more, as with torchrun --nproc-per-node 2"
        )
    if len(set(sizes_bytes)) < 2 or min(sizes_bytes) < 1 or repeats < 1 or warmup < 0:
        raise ProfileError(
            f"links: got sizes {list(sizes_bytes)}, repeats {repeats}, warmup {warmup}, expected at least two sizes of "
            "at least 1 byte, at least 1 repeat, and warmup of at least 0; leave them out for the defaults"
        )
    pairs = list(combinations(range(size), 2))
    times_s = torch.zeros(len(pairs), len(sizes_bytes), dtype=torch.float64, device=device)
    for row, pair in enumerate(pairs):
        dist.barrier()
        if dist.get_rank() in pair:
            for column, num_bytes in enumerate(sizes_bytes):
                seconds = _ping_pong_s(pair, num_bytes, repeats, warmup, torch.device(device))
                times_s[row, column] = seconds if dist.get_rank() == pair[0] else 0.0
    dist.all_reduce(times_s)
    links = {
        pair: fit_link(list(zip(sizes_bytes, row, strict=True)))
        for pair, row in zip(pairs, times_s.tolist(), strict=True)
    }
    date = datetime.now(UTC).isoformat(timespec="seconds")
    origin = f"ping-pong over {dist.get_backend()} on {device}, {repeats} repeats, torch {torch.__version__}, {date}"
    return cluster_of(_nodes(torch.device(device)), links, origin)


def _ping_pong_s(pair: tuple[int, int], num_bytes: int, repeats: int, warmup: int, device: torch.device) -> float:
    """Return the median time of one message from one of `pair` to the other [s]."""
    buffer = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    first, second = pair
    trips = []
    for _ in range(warmup + repeats):
        start_s = time.perf_counter()
        if dist.get_rank() == first:
            dist.send(buffer, second)
            dist.recv(buffer, second)
        else:
            dist.recv(buffer, first)
            dist.send(buffer, first)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        trips.append(time.perf_counter() - start_s)
    return statistics.median(trips[warmup:]) / 2


def _nodes(device: torch.device) -> list[int]:
    """Return the node of each rank, numbered by first appearance.

    Ranks of one node have the same host name and the same node of torchrun (``GROUP_RANK``). Several nodes of torchrun
    may run on one host, in containers that share its name.
    """
    where = f"{socket.gethostname()} {os.environ.get('GROUP_RANK', '')}"
    digest = hashlib.blake2b(where.encode(), digest_size=8).digest()
    names = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    names[dist.get_rank()] = int.from_bytes(digest, "big") >> 1
    dist.all_reduce(names)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names.tolist()]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pipesched.profiles.measuring.link_profiler", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", required=True, help="the cluster, or a share for each size, as JSON")
    parser.add_argument("--backend", choices=get_args(Carrier), default="gloo")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES_BYTES), help="message sizes [bytes]")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--timeout-s", type=float, default=60.0, help="time limit of each wait [s]")
    parser.add_argument("--slowdown", action="store_true", help="measure two ranks that compute beside their messages")
    parser.add_argument("--meet", default="env://", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in the environment of torchrun; rank 0 writes the cluster, or with ``--slowdown`` the slowdowns.

    Returns:
        The exit code: 0 fine, 2 bad input, 3 a rank failed.
    """
    options = _arguments(arguments)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # the launcher has blocked them
    if options.parent is not None:
        end_with(options.parent)
    try:
        if not 0 < options.timeout_s <= LONGEST_S:
            raise ProfileError(
                f"links: timeout_s: got {options.timeout_s:g}, expected seconds above 0, and at most a week "
                f"({LONGEST_S:g}); try 60"
            )
        device = _device(options.backend, options.meet)
        patience = timedelta(seconds=options.timeout_s)
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if options.slowdown:
            pin(rank, size, threads=1)  # as in a run: messages move on the core that computes
            torch.set_num_threads(1)
        known = open_sockets()
        dist.init_process_group(options.backend, options.meet, timeout=patience, rank=rank, world_size=size)
        try:
            others = strangers(known)
            if others:
                raise ProfileError(f"links: user {others[0]} of this machine has connected in place of another rank")
            if options.slowdown:
                slowdowns = [measure_slowdown(num_bytes, options.repeats, device) for num_bytes in options.sizes]
                if rank == 0:
                    Path(options.out).write_text(json.dumps(slowdowns))
            else:
                cluster = measure_links(sizes_bytes=options.sizes, repeats=options.repeats, device=device)
                if rank == 0:
                    save_json(cluster, options.out)
        finally:
            dist.destroy_process_group()
    except ProfileError as error:
        print(error, file=sys.stderr)
        return 2
    except (RuntimeError, ValueError) as error:  # torch.distributed raises these when a rank is gone or late
        reason = " ".join(str(error).split())[:300]
        print(f"links: rank {os.environ.get('RANK')}: {printable(reason)}; is every rank up?", file=sys.stderr)
        return 3
    return 0


def _device(backend: str, meet: str) -> torch.device:
    """Return the device of this rank's messages."""
    needed = ["RANK", "WORLD_SIZE", *(["MASTER_ADDR", "MASTER_PORT"] if meet == "env://" else [])]
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise ProfileError(
            f"links: got no {', '.join(missing)} in the environment, expected the environment of torchrun; start with "
            "torchrun"
        )
    if backend == "gloo":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ProfileError("links: backend: got nccl without a GPU, expected one per rank; use gloo")
    # in a process that sees only its own GPU, as under SLURM, this GPU has number 0
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


if __name__ == "__main__":
    sys.exit(main())
