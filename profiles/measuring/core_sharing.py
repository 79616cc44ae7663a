"""Measure the price of sharing a core: the processor time of a pass beside companions, divided by its time alone.

    on one core   alone alone   with 1 with 1   alone alone   with 2 with 2   alone alone   with 1 with 1 ...
                        ^ a            ^ b                    b / a is one ratio for 2 processes

Both passes of a ratio run one after the other, so that a drift of the machine cancels. A warm-up pass before each of
them fills the caches. Successive ratios take the micro-batch sizes in turn: ratios differ less between sizes than
between repeats.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import SharingPrice, spread_of
from pipesched.profiles.measuring.background_load import Companions
from pipesched.profiles.measuring.computing import computing
from pipesched.profiles.measuring.layer_chain import LayerChain
from pipesched.profiles.measuring.profiler_settings import ProfilerSettings
from pipesched.profiles.models import Model, Value, kept_random_state, torch_dtype
from pipesched.profiles.processes import can_bind, usable_cores

_LEAST_S = 0.05
"""Least processor time of a measurement [s]: several time slices, so that short passes include switches too."""


@kept_random_state()
def measure_sharing(
    model: Model,
    settings: ProfilerSettings,
    num_processes: int,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> tuple[SharingPrice, ...]:
    """Measure the price of sharing a core among 2, 3 and so on up to `num_processes` that run `model`.

    Args:
        model: The model, run whole in each process.
        settings: Settings of the measurement. All processes share `threads` cores. Each number of processes is measured
            `repeats` times, with the `sizes` in turn.
        num_processes: Most processes on the core, at least 2.
        progress: Called with the fraction done.

    Raises:
        ProfileError: Processes cannot be bound to cores here, or the model fails.
    """
    if not can_bind():
        raise ProfileError(
            f"sharing a core: got {num_processes} processes on a system that cannot bind processes to cores, expected "
            "Linux; leave `pipelines` out"
        )
    numbers = range(2, num_processes + 1)
    ratios: dict[int, list[float]] = {number: [] for number in numbers}
    sizes, threads, dtype = settings.sizes, settings.threads, torch_dtype(settings.dtype)
    chain = LayerChain(model, sizes[0], seed=settings.seed, dtype=dtype, device=torch.device("cpu"))
    with (
        computing(threads),
        _bound(usable_cores()[:threads]),
        Companions(model.name, num_processes - 1, "cpu", settings) as others,
    ):
        for repeat in range(settings.repeats):
            size = sizes[repeat % len(sizes)]
            batch = chain.batch(size)
            for number in numbers:
                others.use(size, 0)
                alone_s = _pass_s(chain, *batch)
                others.use(size, number - 1)
                ratios[number].append(_pass_s(chain, *batch) / alone_s)
            progress((repeat + 1) / settings.repeats)
    return tuple(SharingPrice(number, spread_of(ratios[number]).deciles_s) for number in numbers)


def _pass_s(chain: LayerChain, inputs: Value, targets: Value) -> float:
    """Return the processor time of a pass of this thread, after a warm-up pass [s]."""
    chain.run(inputs, targets)
    start_s, num_passes, spent_s = time.thread_time(), 0, 0.0
    while spent_s < _LEAST_S:
        chain.run(inputs, targets)
        num_passes, spent_s = num_passes + 1, time.thread_time() - start_s
    return spent_s / num_passes


@contextmanager
def _bound(cores: Sequence[int]) -> Iterator[None]:
    """Bind this process, and its new children, to `cores`."""
    before = os.sched_getaffinity(os.getpid())
    try:
        _bind_threads(cores)
        yield
    finally:
        _bind_threads(before)


def _bind_threads(cores: Iterable[int]) -> None:
    """Bind every thread of this process to `cores`; new threads inherit that."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(task.name), cores)
