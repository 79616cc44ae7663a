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


def exchanging_ranks(folder, transit_us=800, taken_us=20):
    """Write traces of PyTorch's 1F1B over gloo, two micro-batches of ops of 1 ms, and return their paths.

    A rank posts what it sends together with what it needs next, 10 us each, and waits: a message that was sent long
    before is on its way only from then on.

    rank 0   F0 F1 ........ .. B0 ........ B1
    rank 1   .. F0 B0 (F1 on its way) F1 B1
    """
    op_us, post_us = 1000, 10
    first, second = KinetoFile(0), KinetoFile(1)

    def send(file, at_us):
        file.slice("cpu_op", "c10d::send", at_us, at_us + post_us)
        file.annotation("gloo:send", at_us + 5, at_us + 5 + transit_us)
        return at_us + post_us

    def receive(file, at_us, sent_us):
        there_us = max(at_us + post_us, sent_us) + transit_us
        file.slice("cpu_op", "c10d::recv_", at_us, at_us + post_us).annotation("gloo:recv", at_us + 5, there_us)
        return there_us + taken_us

    def work(file, name, at_us):
        file.annotation(f"PP:{name}", at_us, at_us + op_us)
        return at_us + op_us

    sent_f0 = send(first, work(first, "0F0", 0))
    sent_f1 = send(first, work(first, "0F1", sent_f0))
    sent_b0 = send(second, work(second, "1B0", work(second, "1F0", receive(second, 0, sent_f0))))
    sent_b1 = send(second, work(second, "1B1", work(second, "1F1", receive(second, sent_b0, sent_f1))))
    worked_us = work(first, "0B0", receive(first, sent_f1, sent_b0))
    work(first, "0B1", receive(first, worked_us, sent_b1))
    return [file.write(folder / f"rank{rank}.json") for rank, file in enumerate((first, second))]
