"""Chrome traces that torch.profiler did not write: passes of a pipeline in every form that other writers have."""

import json

FORWARD_US, BACKWARD_US = 10_000, 20_000


def pipeline(num_stages=2, num_microbatches=2, start_us=1000, first_microbatch=0):
    """Return (rank, phase, micro-batch, start, end) of every pass of 1F1B, forwards of 10 ms and backwards of 20 ms.

    Every pass begins when its rank and its input are free: (m + p - 1) * 30 ms, of which p - 1 in m + p - 1 are bubble.
    """
    done, passes, free_us = {}, [], [start_us] * num_stages
    lists = []
    for rank in range(num_stages):
        ahead = min(num_microbatches, num_stages - 1 - rank)
        steady = [(phase, number + ahead * (phase == "F")) for number in range(num_microbatches) for phase in "FB"]
        lists.append(
            [("F", number) for number in range(ahead)] + [work for work in steady if work[1] < num_microbatches]
        )
    while any(lists):
        for rank, own in enumerate(lists):
            if not own:
                continue
            phase, number = own[0]
            needs = [("F", rank - 1, number)] if phase == "F" else [("F", rank, number), ("B", rank + 1, number)]
            needs = [need for need in needs if 0 <= need[1] < num_stages]
            if all(need in done for need in needs):
                begin_us = max([free_us[rank], *(done[need] for need in needs)])
                free_us[rank] = done[phase, rank, number] = begin_us + (FORWARD_US if phase == "F" else BACKWARD_US)
                passes.append((rank, phase, number + first_microbatch, begin_us, free_us[rank]))
                own.pop(0)
    return passes


def pippy_name(rank, phase, microbatch):
    return f"{phase}_{rank},{microbatch}"


def lane(rank):
    """Return a thread of one process for each rank."""
    return {"pid": 0, "tid": rank}


def complete(passes, name=pippy_name, lane=lane, **fields):
    """Return complete events."""
    return [
        {"name": name(rank, phase, number), "ph": "X", "ts": start, "dur": end - start} | lane(rank) | fields
        for rank, phase, number, start, end in passes
    ]


def pairs(passes, name=pippy_name, lane=lane, letters="BE", **fields):
    """Return events of a begin and an end; an end has no name."""
    events = []
    for count, (rank, phase, number, start, end) in enumerate(passes):
        about = lane(rank) | ({"id": count, "cat": "pp"} if letters != "BE" else {}) | fields
        events.append({"name": name(rank, phase, number), "ph": letters[0], "ts": start} | about)
        events.append({"ph": letters[1], "ts": end} | about)
    return events


def write(path, events, **fields):
    path.write_text(json.dumps({"traceEvents": events} | fields if fields else events))
    return path
