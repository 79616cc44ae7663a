"""The offset of two clocks from the traces of their ranks, where one clock is wrong by a known time."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pipesched
from fidelity_rows.bench import Row
from fidelity_rows.torch_rank import NUM_MICROBATCHES
from fidelity_rows.torch_runs import torch_runs
from pipesched.simulator.analysis import readable_s

SHIFTS_NS = (3 * 10**9, -250_000)


def lines(num_rounds: int) -> Iterator[str]:
    """Yield the lines of this row's section."""
    runs = torch_runs(num_rounds)
    yield "The traces of PyTorch's 1F1B, of two ranks on one host: their clocks agree, and what is found beyond the"
    yield "shift is the error. The latency is that of the quickest message from c10d::send to the end of gloo:recv,"
    yield "one way, in the slower direction."
    yield ""
    yield "| shift | error, median | error, largest | said to be within, median | one-way latency | below it |"
    yield "|---|---|---|---|---|---|"
    pairs = [traces["1f1b"] for cases in runs.rounds for traces in cases.values()]
    latencies_ns = [slower_latency_ns(pair) for pair in pairs]
    for shift_ns in SHIFTS_NS:
        errors_ns, bounds_ns = [], []
        for first, second in pairs:
            clocks = pipesched.import_traces([first, shifted(second, shift_ns)]).clocks
            errors_ns.append(abs(clocks.offsets_ns[1] - shift_ns))
            bounds_ns.append(clocks.uncertainties_ns[1])
        num_below = sum(error < latency for error, latency in zip(errors_ns, latencies_ns, strict=True))
        cells = [
            f"{shift_ns / 1e6:+g} ms",
            *(readable_s(f(errors_ns) / 1e9) for f in (statistics.median, max)),
            readable_s(statistics.median(bounds_ns) / 1e9),
            " to ".join(readable_s(f(latencies_ns) / 1e9) for f in (min, max)),
            f"{num_below} of {len(pairs)}",
        ]
        yield f"| {' | '.join(cells)} |"
    yield from runs.bench.lines()


def shifted(path: Path, shift_ns: int) -> Path:
    """Write the trace as of another host, whose clock is `shift_ns` ahead; return its path."""
    trace = json.loads(path.read_text())
    trace["baseTimeNanoseconds"] += shift_ns
    trace["host_name"] = "another"
    other = path.with_name(f"shifted-{path.name}")
    other.write_text(json.dumps(trace))
    return other


def slower_latency_ns(pair: Sequence[Path]) -> float:
    """Return the time of the fastest message of the last step, in the slower direction [ns]."""
    ends = []
    for path in pair:
        trace = json.loads(path.read_text())
        events = sorted(trace["traceEvents"], key=lambda event: event.get("ts", 0))
        ends.append(
            {
                "sent": [event["ts"] for event in events if event["name"] == "c10d::send"],
                "there": [event["ts"] + event["dur"] for event in events if event["name"] == "gloo:recv"],
            }
        )
    directions_us: list[float] = []
    for sender, receiver in (ends, ends[::-1]):
        messages = list(zip(sender["sent"], receiver["there"], strict=True))[-NUM_MICROBATCHES:]
        directions_us.append(min(there - sent for sent, there in messages))
    return 1000 * max(directions_us)


ROW = Row(
    "Clocks of two ranks with a known shift",
    "an error below the one-way latency of the messages",
    8,
    40.0,
    lines,
    torch_runs,
)
