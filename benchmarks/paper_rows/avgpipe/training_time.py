"""Fig. 11, 12, 13 and 15: AvgPipe beside data parallelism and other pipelines, in the same memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean

from paper_rows.avgpipe.systems import SystemResult, avgpipe, baseline, best_within
from paper_rows.avgpipe.workloads import ETHERNET_BYTES_PER_S, Workload, awd, bert, gnmt
from paper_rows.figure import Outcome, Verdict, verdict_of
from pipesched.simulator import NetworkOptions

BASELINES = ("PyTorch", "GPipe", "PipeDream", "2BW", "Dapple")
_BLOCKING = NetworkOptions(sends="blocking")
_WITHIN = 0.15
_ORDER = "Within 15 %. The order includes the baselines at 1 x: AvgPipe must be faster where it is in the paper."
_WIDE = (1.0, 2.0, 4.0)
"""Factors on the bytes that layers keep for their backward, which the paper does not state."""


@dataclass(frozen=True, slots=True)
class Published:
    """The paper's speed-ups of AvgPipe on one workload.

    Attributes:
        speedups: Over a baseline in its memory; None if the baseline is out of memory, missing if not printed.
        settings: M and N of AvgPipe beside a baseline, as far as printed.
        over_gpipe: Time of data parallelism over GPipe's: the quotient of two speed-ups, or of 4 days and 34 hours.
    """

    speedups: Mapping[str, float | None]
    settings: Mapping[str, tuple[int, int]]
    over_gpipe: float


PUBLISHED = {
    "GNMT": Published({"GPipe": 1.3, "PipeDream": 1.6, "2BW": 1.6}, {"GPipe": (64, 2), "2BW": (64, 2)}, 96 / 34),
    "BERT": Published(
        {"PyTorch": 1.3, "GPipe": 1.1, "PipeDream": None, "2BW": 1.8},
        {"PyTorch": (16, 3), "GPipe": (16, 2), "2BW": (32, 2)},
        1.3 / 1.1,
    ),
    "AWD": Published(
        {"PyTorch": 7.0, "GPipe": 1.8, "2BW": 1.8}, {"PyTorch": (1, 2), "GPipe": (1, 2), "2BW": (1, 2)}, 7.0 / 1.8
    ),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A baseline, and AvgPipe beside it.

    Attributes:
        baseline: The baseline.
        within: AvgPipe at its fastest in the memory of the baseline, or None if nothing fits.
        largest: AvgPipe at its fastest in 32 GB a GPU.
        printed: AvgPipe in the paper's setting beside this baseline, or None.
    """

    baseline: SystemResult
    within: SystemResult | None
    largest: SystemResult | None
    printed: SystemResult | None

    @property
    def speedup(self) -> float:
        """Speed-up in the same memory, 0 if nothing fits."""
        return self.over_baseline(self.within)

    def over_baseline(self, system: SystemResult | None) -> float:
        """Return the speed-up of a system over the baseline, or 0 if there is none."""
        return self.baseline.s_per_sample / system.s_per_sample if system else 0.0


@cache
def pairs(workload: Workload) -> dict[str, Pair]:
    """Return every baseline of a workload beside AvgPipe."""
    results = {}
    for name in BASELINES:
        other, setting = baseline(name, workload), PUBLISHED[workload.name].settings.get(name)
        m, n = setting or (1, 1)
        ahead = min(max(0, m - 2), workload.num_devices)
        printed = None if setting is None else avgpipe(workload, m, n, ahead)
        results[name] = Pair(other, best_within(workload, other.total_bytes), best_within(workload, math.inf), printed)
    return results


def repeat_gnmt() -> Outcome:
    """Simulate GNMT."""
    day_s = _s_per_batch(baseline("PyTorch", gnmt()), gnmt())
    return _outcome(
        gnmt(),
        f"Data parallelism takes {day_s:.1f} s for a batch at 1 Gb/s: an epoch of 4.5 million sentences would take "
        f"{4.5e6 / 128 * day_s / 86400:.1f} days, and the paper has 4 days for the training. A layer of LSTM takes "
        "nearly as long for 2 sentences as for 21, as each token reads all weights, so the paper's 64 micro-batches "
        "cost more work than they save; messages hide the difference at 1 Gb/s. Two pipelines with reference model and "
        "updates hold more than twice the states of Adam: in the memory of GPipe or 2BW there is room for one.",
    )


def repeat_bert() -> Outcome:
    """Simulate BERT."""
    rates = {
        name: pairs(replace(bert(), bytes_per_s=factor * ETHERNET_BYTES_PER_S))["PyTorch"].speedup
        for name, factor in (("10 Gb/s", 10), ("100 Gb/s", 100))
    }
    by_rate = ", ".join(f"{speedup:.1f} x at {name}" for name, speedup in rates.items())
    base_gb = baseline("PyTorch", bert(12, 768)).total_bytes / 1e9
    num_bytes = sum(bert().profile.weights_of_layers)
    ring_s = 2 * 2 / 3 * num_bytes / ETHERNET_BYTES_PER_S
    return _outcome(
        bert(),
        f"BERT is the large one: data parallelism with the base model would take {base_gb:.0f} GB, and the paper has "
        f"over 50. Its gradients have {num_bytes / 1e9:.1f} GB, which 1 Gb/s moves between three nodes in no less than "
        f"{ring_s:.0f} s a batch. The paper has 1.3 x over data parallelism; faster networks give {by_rate}. "
        "2BW has no flush, so it is faster than GPipe here; in the paper it is slower.",
    )


def repeat_awd() -> Outcome:
    """Simulate AWD."""
    return _outcome(
        awd(),
        "Messages of one link are nearly all of the time. Two pipelines use both of its directions at once and are "
        "twice as fast as GPipe, as in the paper, but only with more memory than GPipe. 2BW does the same without a "
        "flush. The paper's 3.0 x over PipeDream counts epochs too; the time per epoch alone is in the table.",
    )


def _s_per_batch(result: SystemResult, workload: Workload) -> float:
    return result.s_per_sample * workload.batch


def _outcome(workload: Workload, reason: str) -> Outcome:
    published = {name: s for name, s in PUBLISHED[workload.name].speedups.items() if s is not None}
    results = pairs(workload)
    speedups = {name: results[name].speedup for name in published}
    free = {name: results[name].over_baseline(results[name].largest) for name in published}
    printed = {name: pair.over_baseline(pair.printed) for name, pair in results.items() if pair.printed}
    return Outcome(
        _named(published),
        f"{_named(speedups)}; in 32 GB a GPU: {_named(free)}; in the paper's M, N: {_named(printed)}",
        verdict_of([*speedups.values(), 1.0], [*published.values(), 1.0], _WITHIN),
        f"{reason} {_ORDER}",
        [*_table(workload), "", *_variations(workload)],
    )


def _named(speedups: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {speedup:.1f} x" for name, speedup in speedups.items())


def _table(workload: Workload) -> Iterator[str]:
    yield "Seconds of a batch, memory of all GPUs; speed-ups of AvgPipe over the row's system."
    yield ""
    yield "| | time | memory | fullest GPU | AvgPipe in its memory | | in 32 GB a GPU | | paper's M, N | | memory |"
    yield "|---|---:|---:|---:|---|---:|---|---:|---|---:|---:|"
    for name, pair in pairs(workload).items():
        other = pair.baseline
        cells = [name, f"{_s_per_batch(other, workload):.3f} s", f"{other.total_bytes / 1e9:.1f} GB"]
        cells.append(f"{max(other.bytes_per_device) / 1e9:.1f} GB{'' if other.fits else ', too much'}")
        for averaged in (pair.within, pair.largest, pair.printed):
            cells += ["-", "-"] if averaged is None else [averaged.setting, f"{pair.over_baseline(averaged):.2f} x"]
        cells.append("-" if pair.printed is None else f"{pair.printed.total_bytes / other.total_bytes:.2f} x")
        yield f"| {' | '.join(cells)} |"


def _variations(workload: Workload) -> Iterator[str]:
    """Yield the speed-ups in the same memory over assumptions that the paper does not state."""
    yield "| assumption | " + " | ".join(BASELINES) + " |"
    yield "|---|" + "---:|" * len(BASELINES)
    cases = {
        "as above": workload,
        "sends wait": replace(workload, network=_BLOCKING),
        "10 Gb/s": replace(workload, bytes_per_s=10 * ETHERNET_BYTES_PER_S),
    } | {f"{factor:g} x activations": workload.with_saved(factor) for factor in _WIDE[1:]}
    if (rate := implied_rate(workload)) is not None:
        cases[f"{rate:.1f} Gb/s: data parallelism over GPipe as in the paper"] = _at(workload, rate)
    for name, case in cases.items():
        results = pairs(case)
        yield f"| {name} | " + " | ".join(f"{results[other].speedup:.2f} x" for other in BASELINES) + " |"


def _at(workload: Workload, rate: float) -> Workload:
    """Return the workload with a multiple of the paper's bandwidth between nodes."""
    return replace(workload, bytes_per_s=rate * ETHERNET_BYTES_PER_S)


def _over_gpipe(workload: Workload, rate: float) -> float:
    data_parallel, gpipe = (baseline(name, _at(workload, rate)) for name in ("PyTorch", "GPipe"))
    return data_parallel.s_per_sample / gpipe.s_per_sample


def _implied(workload: Workload) -> str:
    rate, name = implied_rate(workload), workload.name
    if rate is None:
        published = PUBLISHED[name].over_gpipe
        return f"no bandwidth ({name}: {_over_gpipe(workload, 1.0):.1f} at 1 Gb/s, {published:.1f} in the paper)"
    return f"{rate:.0f} Gb/s ({name})"


@cache
def implied_rate(workload: Workload) -> float | None:
    """Return the bandwidth, over 1 Gb/s, at which data parallelism takes the paper's multiple of GPipe's time.

    None if no bandwidth from 0.5 to 500 Gb/s does.
    """
    ratio = partial(_over_gpipe, workload)
    low, high, published = 0.5, 500.0, PUBLISHED[workload.name].over_gpipe
    if not ratio(high) <= published <= ratio(low):
        return None
    while high > 1.005 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if ratio(middle) > published else (low, middle)
    return low


def repeat_overall() -> Outcome:
    """Average the speed-ups of Fig. 11."""
    over_data = [pairs(make())["PyTorch"].speedup for make in (gnmt, bert, awd)]
    others = BASELINES[1:]
    over_pipelines = [pairs(make())[name].speedup for make in (gnmt, bert, awd) for name in others]
    free = [
        pair.over_baseline(pair.largest)
        for make in (gnmt, bert, awd)
        for name, pair in pairs(make()).items()
        if name in others
    ]
    results = [fmean(over_data), fmean(over_pipelines)]
    implied = ", ".join(map(_implied, (gnmt(), bert(), awd())))
    return Outcome(
        "4.7 x over data parallelism, 1.7 x over pipelines",
        f"{results[0]:.0f} x ({min(over_data):.1f} to {max(over_data):.1f}), {results[1]:.2f} x "
        f"({min(over_pipelines):.2f} to {max(over_pipelines):.2f}); in 32 GB a GPU {fmean(free):.2f} x",
        verdict_of([*results, 1.0], [4.7, 1.7, 1.0], _WITHIN),
        "In the memory of the other pipelines there is rarely room for a second pipeline with its states of Adam and "
        "the reference model, so AvgPipe is 1F1B with forwards ahead there. With all of the GPU's memory it gains. "
        "Systems without a flush (PipeDream, 2BW) are faster here than in the paper. Data parallelism of GNMT and BERT "
        "sums gradients of 0.8 and 1.3 GB over 1 Gb/s, and is slower than the paper's speed-ups allow. Data "
        f"parallelism takes the paper's multiple of GPipe's time at {implied}: no one network explains all three. The "
        "tables below have AvgPipe's speed-ups there. Within 15 %; the shape is the order of both means and 1 x.",
    )


def repeat_memory() -> Outcome:
    """Count the memory of every system."""
    lines = ["| | " + " | ".join(BASELINES) + " | AvgPipe (2BW) |", "|---|" + "---:|" * (len(BASELINES) + 1)]
    cases = {
        "GNMT": gnmt(),
        "BERT, 128 tokens": bert(tokens=128),
        "BERT, 256 tokens": bert(),
        "BERT, 512 tokens": bert(tokens=512),
        "BERT base": bert(12, 768),
        "AWD": awd(),
    }
    for name, workload in cases.items():
        cells = [name]
        for other in BASELINES:
            result = baseline(other, workload)
            cells.append(f"{result.total_bytes / 1e9:.1f}{'' if result.fits else ' (too much)'}")
        m, n = PUBLISHED[workload.name].settings["2BW"]
        cells.append(f"{avgpipe(workload, m, n, min(max(0, m - 2), workload.num_devices)).total_bytes / 1e9:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    by_tokens = {128: bert(tokens=128), 256: bert(), 512: bert(tokens=512)}
    totals = {tokens: baseline("PyTorch", of).total_bytes / 1e9 for tokens, of in by_tokens.items()}
    over = [tokens for tokens, of in by_tokens.items() if not baseline("PipeDream", of).fits]
    m, n = PUBLISHED["GNMT"].settings["2BW"]
    ratio = avgpipe(gnmt(), m, n, 6).total_bytes / baseline("2BW", gnmt()).total_bytes
    factor = _factor_for_two(gnmt(), m, n)
    is_as_said = min(totals.values()) <= 50 <= max(totals.values()) and bool(over)
    return Outcome(
        "BERT: PyTorch over 50 GB, PipeDream out of memory; GNMT: AvgPipe (2BW) 6.8 % below 2BW",
        f"BERT: {totals[128]:.0f} to {totals[512]:.0f} GB over 128 to 512 tokens, PipeDream too much with "
        f"{', '.join(map(str, over)) or 'none'}; GNMT {ratio - 1:+.0%}",
        Verdict.AGREES if is_as_said and ratio <= 1 else Verdict.DIFFERS,
        "It agrees if AvgPipe needs no more than 2BW for GNMT, and the two claims on BERT hold for some number of "
        "tokens from 128 to 512, which the paper does not state. Other rows have 256, chosen by the 50 GB, which is no "
        "evidence for them. Two pipelines of GNMT hold two models, two states of Adam, two updates and a reference; "
        "they fit into the memory of 2BW only "
        f"if layers keep {factor:.1f} times the bytes assumed here. The memory of PyTorch itself (its context on the "
        "GPU, the allocator's cache) is not counted.",
        ["GB of all GPUs, two pipelines of AvgPipe in the paper's setting beside 2BW.", "", *lines],
    )


def _factor_for_two(workload: Workload, m: int, n: int) -> float:
    """Return the factor on kept bytes at which AvgPipe takes the memory of 2BW: both are linear in it."""
    bytes_of = [
        (avgpipe(of, m, n, 6).total_bytes, baseline("2BW", of).total_bytes)
        for of in (workload, workload.with_saved(2.0))
    ]
    gaps = [averaged - stale for averaged, stale in bytes_of]
    return 1 + gaps[0] / (gaps[0] - gaps[1])


def repeat_utilisation() -> Outcome:
    """Compare the mean utilisation of AvgPipe with the baselines', as work per second and as time with a kernel."""
    published = {"GNMT": 0.861, "BERT": 0.413, "AWD": 0.196}
    lines = [f"| | {' | '.join(BASELINES)} | AvgPipe |", "|---|" + "---:|" * (len(BASELINES) + 1)]
    free, busy = [], []
    for make in (gnmt, bert, awd):
        workload = make()
        results = pairs(workload)
        best, printed = best_within(workload, math.inf), results["2BW"].printed
        assert best is not None and printed is not None, "one pipeline fits"  # noqa: PT018
        its = [pair.baseline for name, pair in results.items() if name != "PyTorch"]
        free.append(best.utilisation / fmean(of.utilisation for of in its) - 1)
        pipelines = PUBLISHED[workload.name].settings["2BW"][1]
        bounds = max(printed.utilisation, printed.busy / pipelines), min(1.0, printed.busy)
        busy.append([bound / fmean(of.busy for of in its) - 1 for bound in bounds])
        cells = [f"{pair.baseline.utilisation:.1%}" for pair in results.values()]
        lines.append(f"| {workload.name}, work per second | {' | '.join(cells)} | {best.utilisation:.1%} |")
        cells = [f"{pair.baseline.busy:.1%}" for pair in results.values()]
        lines.append(f"| {workload.name}, time with a kernel | {' | '.join(cells)} | {_range(bounds, '.1%')} |")
    gains = [f"{name} {_range(of, '+.0%')}" for name, of in zip(published, busy, strict=True)]
    return Outcome(
        ", ".join(f"{name} +{gain:.1%}" for name, gain in published.items()),
        ", ".join(f"{name} {gain:+.0%}" for name, gain in zip(published, free, strict=True))
        + f" as work per second; {', '.join(gains)} as time with a kernel",
        verdict_of([*free, 0.0], [*published.values(), 0.0], 0.25),
        "Over the mean of the other pipelines. The paper does not define utilisation. Work per second is throughput "
        "over the best throughput of a stage, AvgPipe in 32 GB a GPU; its gain is the speed-up by definition, and the "
        "verdict is on it. The share of time in which a kernel runs, as a GPU's own counter has it, was tried after "
        "the first: AvgPipe has the paper's M and N beside 2BW there, between all kernels of its pipelines overlapping "
        "and none. Small kernels take longer, so that this share has the paper's order of the models, but AWD loses. "
        "Within a quarter of the paper's gains.",
        lines,
    )


def _range(bounds: Sequence[float], form: str) -> str:
    least, most = (format(bound, form) for bound in bounds)
    return least if least == most else f"{least} to {most}"


def repeat_batches() -> Outcome:
    """Simulate GNMT for batches of 64 to 256 sentences."""
    lines = ["| batch | GPipe, M = 6 | AvgPipe in its memory | speed-up | in 32 GB a GPU | speed-up |",
             "|---:|---:|---|---:|---|---:|"]  # fmt: skip
    results, free, times = [], [], []
    for batch in (64, 128, 256):
        workload = replace(gnmt(), batch=batch)
        other = baseline("GPipe", workload)
        within, most = (best_within(workload, limit) for limit in (other.total_bytes, math.inf))
        assert within is not None and most is not None, "one pipeline fits"  # noqa: PT018
        times.append(other.s_per_sample)
        results.append(other.s_per_sample / within.s_per_sample)
        free.append(other.s_per_sample / most.s_per_sample)
        lines.append(
            f"| {batch} | {1e3 * other.s_per_sample:.2f} ms a sentence | {within.setting} | {results[-1]:.2f} x "
            f"| {most.setting} | {free[-1]:.2f} x |"
        )
    return Outcome(
        "GPipe alike for 64 to 256; AvgPipe 1.3 x at 64, 2.6 x at 256",
        f"GPipe's times spread by {max(times) / min(times) - 1:.0%}; {results[0]:.2f} x, {results[-1]:.2f} x; in 32 GB "
        f"{free[0]:.2f} x, {free[-1]:.2f} x",
        verdict_of([results[0], results[-1]], [1.3, 2.6], _WITHIN),
        "Messages are in proportion to sentences and set the pace at 1 Gb/s for both systems and all batches. Within "
        "15 %; the shape is the order of both speed-ups in GPipe's memory.",
        lines,
    )
