"""Pipelines in 1F1B on the same devices, in a small event loop of its own that knows nothing of pipesched.

Work that shares a device is slowed by the number of pipelines that compute there. The messages of a pipeline cross a
link one after the other, slowed by the number of pipelines that send there, and arrive the latency later. Each op's
seconds vary a little, or nothing would tell equal pipelines apart.
"""

import random
from collections import Counter


def orders(num_ranks, num_microbatches, advance, iterations):
    """Return each rank's order of ("F" or "B", micro-batch), for all iterations."""
    rows = []
    for rank in range(num_ranks):
        ahead = num_ranks - 1 - rank + (advance if rank < num_ranks - 1 else 0)
        row = []
        for first in range(0, iterations * num_microbatches, num_microbatches):
            for i in range(num_microbatches + ahead):
                row += [("F", first + i)] if i < num_microbatches else []
                row += [("B", first + i - ahead)] if i >= ahead else []
        rows.append(row)
    return rows


def seconds_per_microbatch(  # noqa: C901 -- an event loop
    number, num_microbatches, stages, *, advance=0, bandwidth=None, latency_s=0.0, iterations=60
):
    """Return the seconds per micro-batch, of all pipelines together, in the second half of a long run.

    Args:
        number: Pipelines.
        num_microbatches: Micro-batches of each pipeline.
        stages: (F, B) of each rank [s].
        advance: Forwards that run further ahead than in 1F1B.
        bandwidth: Messages per second of a link; None: no limit.
        latency_s: Latency of a link [s].
        iterations: Batches that each pipeline does.
    """
    draw, p = random.Random(5), len(stages)
    rows = orders(p, num_microbatches, advance, iterations)
    at = {(n, k): 0 for n in range(number) for k in range(p)}
    arrived, running, queues, landing, now = set(), {}, {}, [], 0.0  # queues: by pipeline and link, [key, left]
    losses = {n: [] for n in range(number)}

    def begin(n, k):
        if (n, k) in running or at[n, k] == len(rows[k]):
            return
        kind, i = rows[k][at[n, k]]
        if (k == 0 if kind == "F" else k == p - 1) or (n, k, kind, i) in arrived:
            running[n, k] = stages[k][kind == "B"] * draw.lognormvariate(0.0, 0.05)

    def send(n, k, kind, i):
        to = k + (1 if kind == "F" else -1)
        if 0 <= to < p:
            queues.setdefault((n, k, to), []).append([(n, to, kind, i), 1.0])

    for n, k in at:
        begin(n, k)
    while running or queues or landing:
        sharers = Counter(k for _, k in running)
        crossing = Counter((k, to) for _, k, to in queues)
        rate = {(n, k, to): (bandwidth or 1e15) / crossing[k, to] for n, k, to in queues}
        step = min(
            [left * sharers[k] for (_, k), left in running.items()]
            + [queue[0][1] / rate[key] for key, queue in queues.items()]
            + [when - now for when, _ in landing]
        )
        now += step
        done = [key for key, left in running.items() if left - step / sharers[key[1]] <= 1e-12]
        running = {key: left - step / sharers[key[1]] for key, left in running.items()}
        for key, queue in [*queues.items()]:
            queue[0][1] -= step * rate[key]
            if queue[0][1] <= 1e-9:
                landing.append((now + latency_s, queue.pop(0)[0]))
                if not queue:
                    del queues[key]
        ready = [key for when, key in landing if when <= now + 1e-12]
        landing = [(when, key) for when, key in landing if when > now + 1e-12]
        arrived.update(ready)
        for n, k in done:
            del running[n, k]
            kind, i = rows[k][at[n, k]]
            at[n, k] += 1
            if kind == "B" and k == 0:
                losses[n].append(now)
            send(n, k, kind, i)
        for n, k in {*done, *((n, k) for n, k, *_ in ready)}:
            begin(n, k)
    half = iterations // 2 * num_microbatches - 1
    until = min(ends[-1] for ends in losses.values())
    since = max(ends[half] for ends in losses.values())
    count = sum(sum(since < end <= until for end in ends) for ends in losses.values())
    return (until - since) / count
