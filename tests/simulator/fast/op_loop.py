"""When ops are over, in a plain loop over the ranks that knows nothing of engines."""

from collections import Counter

from pipesched.schedules.ops import Compute, Phase, Reduce, Step


def ends_s(schedule, stages, latency_s=0.0):  # noqa: C901 -- a loop over ops
    """Return when each F and B is over, by (phase, stage, micro-batch), by going round the ranks until nothing is left.

    Args:
        schedule: Lists of F, B, Reduce and Step, not lowered.
        stages: (F, B, Step) of each stage [s].
        latency_s: Time of a message, and of each hop of a reduction [s].
    """
    ends, homes, posted, at, now = {}, {}, {}, Counter(), Counter()
    replicas = {stage: len(schedule.replicas(stage)) for stage in range(schedule.num_stages)}
    reduces = Counter()
    left = sum(map(len, schedule.ops))
    while left:
        before = left
        for rank, row in enumerate(schedule.ops):
            while at[rank] < len(row):
                op, start = row[at[rank]], now[rank]
                if isinstance(op, Compute):
                    is_forward = op.phase is Phase.FORWARD
                    source = (op.phase, op.stage + (-1 if is_forward else 1), op.microbatch)
                    if not is_forward and op.stage == schedule.num_stages - 1:
                        source = Phase.FORWARD, op.stage, op.microbatch
                    if source[1] >= 0:
                        if source not in ends:
                            break
                        start = max(start, ends[source] + (latency_s if homes[source] != rank else 0))
                    now[rank] = ends[op.phase, op.stage, op.microbatch] = start + stages[op.stage][not is_forward]
                    homes[op.phase, op.stage, op.microbatch] = rank
                elif isinstance(op, Reduce):
                    reduces[rank, op.stage] += 1
                    posted.setdefault((op.stage, reduces[rank, op.stage]), []).append(now[rank])
                elif isinstance(op, Step):
                    times = posted.get((op.stage, reduces[rank, op.stage]), [])
                    if reduces[rank, op.stage] and len(times) < replicas[op.stage]:
                        break
                    ring_s = 2 * (len(times) - 1) * latency_s  # round the replicas and round again
                    now[rank] = max([start, *(time + ring_s for time in times)]) + stages[op.stage][2]
                at[rank] += 1
                left -= 1
        assert left < before, "it goes on"
    return ends
