"""Small traces in the format of Kineto, written by hand: times in microseconds."""

import json

BASE_NS = 1_790_857_026_000_000_000


class KinetoFile:
    """One rank's trace: events as torch.profiler writes them."""

    def __init__(self, rank, base_ns=BASE_NS, host="host"):
        self.rank, self.base_ns, self.host = rank, base_ns, host
        self.events = [{"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "python"}}]
        self.number = 0

    def slice(self, category, name, start_us, end_us, **arguments):
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": end_us - start_us}
        self.events.append(event | {"args": {"Ev Idx": len(self.events)} | arguments})
        return self

    def annotation(self, name, start_us, end_us):
        return self.slice("user_annotation", name, start_us, end_us)

    def python(self, name, start_us, end_us):
        return self.slice("python_function", name, start_us, end_us)

    def kernel(self, launch_us, start_us, end_us, name="ampere_sgemm_128x64_tn", tid=1):
        """Add a kernel and the call that launched it, which a correlation id ties together."""
        self.number += 1
        self.slice("cuda_runtime", "cudaLaunchKernel", launch_us, launch_us + 2, correlation=self.number, cbid=211)
        self.events[-1]["tid"] = tid
        self.slice("kernel", name, start_us, end_us, correlation=self.number, device=0, stream=7)
        self.events[-1] |= {"pid": 0, "tid": 7}
        return self

    def write(self, path, **fields):
        head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": 2}}
        head |= {"host_name": self.host, "displayTimeUnit": "ms", "baseTimeNanoseconds": self.base_ns}
        path.write_text(json.dumps(head | {"traceEvents": self.events, "traceName": path.name} | fields))
        return path


def two_ranks(
    folder, name=lambda stage, phase, microbatch: f"PP:{stage}{phase}{microbatch}", count=2, step_us=0, **of_rank_1
):
    """Write traces of GPipe on two ranks, an op of 100 us after the other, and return their paths.

    rank 0   F0 F1 .. .. B0 B1        messages take 10 us
    rank 1   .. F0 F1 B0 B1 ..
    """
    first, second = KinetoFile(0), KinetoFile(1, **of_rank_1)
    for index in range(count):
        first.annotation(name(0, "F", index), 100 * index, 100 * index + 100)
        second.annotation(name(1, "F", index), 100 * index + 110, 100 * index + 210)
        second.annotation(name(1, "B", index), 100 * (index + count) + 110, 100 * (index + count) + 210)
        first.annotation(name(0, "B", index), 100 * (index + count) + 220, 100 * (index + count) + 320)
    if step_us:
        end_us = 200 * count + 220
        first.annotation("Optimizer.step#SGD.step", end_us, end_us + step_us)
        second.annotation("Optimizer.step#SGD.step", end_us - 110, end_us - 110 + step_us)
    return [file.write(folder / f"rank{rank}.json") for rank, file in enumerate((first, second))]
