"""The systems of AvgPipe's section 7, each as a schedule on the paper's cluster: seconds, bytes and utilisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import attrgetter
from statistics import fmean

import pipesched
from paper_rows.avgpipe.workloads import Workload
from pipesched.profiles.costs import StageCosts
from pipesched.simulator import Scenario
from pipesched.simulator.fast import predict_scenario
from pipesched.simulator.search import Setting
from pipesched.simulator.tuner import evaluate_setting, tuned

PIPELINES = (1, 2, 3, 4)
"""N of AvgPipe, as far as memory allows in the paper for two of three models."""
_SAME = 0.005
"""Settings whose seconds lie nearer to each other, as a share, count as equally fast."""


@dataclass(frozen=True, slots=True)
class SystemResult:
    """A system on a workload.

    Attributes:
        s_per_sample: Seconds of training for a sample, in the steady state.
        bytes_per_device: Peak memory of each GPU.
        utilisation: Mean over GPUs and time of the utilisation.
        busy: Seconds of the kernels of all pipelines over the time, mean over GPUs; above 1 where pipelines overlap.
        peak_utilisation: Highest utilisation of a GPU, mean over the GPUs.
        fits: Whether every GPU fits into its memory.
        setting: Name for people.
    """

    s_per_sample: float
    bytes_per_device: tuple[int, ...]
    utilisation: float
    busy: float
    peak_utilisation: float
    fits: bool
    setting: str

    @property
    def total_bytes(self) -> int:
        """Memory of all GPUs together, as in the paper's Fig. 12."""
        return sum(self.bytes_per_device)


@cache
def baseline(name: str, workload: Workload, num_microbatches: int | None = None) -> SystemResult:
    """Return one of the paper's baselines, with as many micro-batches in a batch as GPUs unless a number is given.

    PyTorch is data parallelism. PipeDream has a whole batch for a micro-batch and keeps a version of the weights for
    each that is under way; PipeDream-2BW keeps two. Dapple is 1F1B with a flush.
    """
    count = num_microbatches or workload.num_devices
    size = workload.batch // count
    devices = workload.num_devices
    match name:
        case "PyTorch":
            costs = workload.whole(workload.batch // devices)
            schedule, samples = pipesched.build("data_parallel", devices, devices), workload.batch // devices * devices
        case "GPipe" | "Dapple":
            costs, samples = workload.costs(size), count * size
            schedule = pipesched.build("gpipe" if name == "GPipe" else "1f1b", devices, count)
        case "PipeDream":
            costs, samples = workload.costs(workload.batch), 3 * devices * workload.batch
            schedule, size, count = pipesched.build("pipedream", devices, 3 * devices), workload.batch, 1
        case "2BW":
            costs, samples = workload.costs(size), 4 * count * size
            schedule = pipesched.build("pipedream_2bw", devices, 4 * count, accumulate=count)
        case _:
            raise ValueError(name)
    result = workload.simulate(schedule, costs)
    s_per_sample = result.step_s / samples
    held = tuple(device.peak_memory_bytes or 0 for device in result.metrics.devices)
    used, share = (costs.stages * devices, devices) if name == "PyTorch" else (costs.stages, 1)
    utilisation, busy = _mean_utilisation(StageCosts(used), costs.microbatch_size or 1, s_per_sample)
    return SystemResult(
        s_per_sample,
        held,
        utilisation / share,
        busy / share,
        fmean(stage.utilisation for stage in used),
        workload.fits(held),
        name if name == "PyTorch" else f"{name}, M = {count}",
    )


def _mean_utilisation(costs: StageCosts, microbatch_size: int, s_per_sample: float) -> tuple[float, float]:
    """Return the work of a sample, as seconds of a whole GPU, and the seconds of its kernels, over its seconds."""
    work_s = fmean(stage.both_s * stage.utilisation for stage in costs.stages)
    kernels_s = fmean(stage.both_s for stage in costs.stages)
    return work_s / microbatch_size / s_per_sample, kernels_s / microbatch_size / s_per_sample


@cache
def avgpipe(workload: Workload, num_microbatches: int, pipelines: int, advance: int = 0) -> SystemResult:
    """Return AvgPipe with N pipelines of M micro-batches each."""
    setting = tuned("avgpipe", workload.num_devices, num_microbatches, pipelines, advance)
    outcome = evaluate_setting(workload.problem, setting)
    assert outcome.seconds is not None, outcome.reason
    costs, s_per_sample = workload.problem.costs(setting), outcome.seconds / workload.batch
    return SystemResult(
        s_per_sample,
        _held(workload, setting),
        *_mean_utilisation(costs, workload.batch // num_microbatches, s_per_sample),
        fmean(min(1.0, pipelines * stage.utilisation) for stage in costs.stages),
        outcome.fits,
        f"M = {num_microbatches}, N = {pipelines}, {advance} ahead",
    )


@cache
def afab(workload: Workload, num_microbatches: int, pipelines: int) -> SystemResult:
    """Return N pipelines that run all forwards before all backwards, with reference model and updates if N > 1."""
    setting = tuned("gpipe", workload.num_devices, num_microbatches)
    costs = workload.problem.costs(setting)
    lists = workload.problem.pipelines(setting, costs)
    alone = lists.together(1)
    seconds = alone.seconds if pipelines == 1 else lists.pace(pipelines).seconds / pipelines
    weights = [(1 + pipelines) * (pipelines > 1) * stage.weight_bytes for stage in costs.stages]
    held = tuple(pipelines * alone.peak_bytes[device] + more for device, more in enumerate(weights))
    size, s_per_sample = workload.batch // num_microbatches, seconds / workload.batch
    return SystemResult(
        s_per_sample,
        held,
        *_mean_utilisation(costs, size, s_per_sample),
        fmean(min(1.0, pipelines * stage.utilisation) for stage in costs.stages),
        workload.fits(held),
        f"M = {num_microbatches}, N = {pipelines}, AFAB",
    )


def _held(workload: Workload, setting: Setting) -> tuple[int, ...]:
    """Return the peak memory of each GPU, of pipelines that begin together."""
    costs = workload.problem.costs(setting)
    together = predict_scenario(Scenario(setting.build(), costs, workload.cluster, workload.network))
    return tuple(together.peak_bytes[device] for device in sorted(together.peak_bytes))


def microbatch_counts(workload: Workload, most: int = 64) -> tuple[int, ...]:
    """Return the numbers M that divide the batch, up to `most`."""
    return tuple(m for m in range(1, min(most, workload.batch) + 1) if workload.batch % m == 0)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A setting of AvgPipe, with a lower bound of its seconds for a sample, and its memory."""

    least_s: float
    total_bytes: int
    place: tuple[int, int, int]


@cache
def _candidates(workload: Workload) -> tuple[_Candidate, ...]:
    """Return all settings that fit: M, N, and 1F1B or forwards ahead by as many as there are GPUs."""
    results = []
    for m, n in product(microbatch_counts(workload), PIPELINES):
        for advance in sorted({0, min(max(0, m - 2), workload.num_devices)}):
            setting = tuned("avgpipe", workload.num_devices, m, n, advance)
            lists = workload.problem.pipelines(setting, workload.problem.costs(setting))
            held = _held(workload, setting)
            if workload.fits(held):
                results.append(_Candidate(lists.least_s(n) / n / workload.batch, sum(held), (m, n, advance)))
    return tuple(sorted(results, key=lambda of: (round(math.log(of.least_s) / _SAME), of.total_bytes)))


def best_within(workload: Workload, total_bytes: float) -> SystemResult | None:
    """Return the fastest setting of AvgPipe, to 0.5 %, that takes no more memory in all; None if none does."""
    best = None
    for candidate in _candidates(workload):
        if candidate.total_bytes > total_bytes:
            continue
        if best is not None and candidate.least_s > best.s_per_sample * (1 - _SAME):
            break
        result = avgpipe(workload, *candidate.place)
        best = min((best, result), key=attrgetter("s_per_sample")) if best else result
    return best
