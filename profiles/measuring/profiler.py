"""Measure the costs of each layer of a model on this machine."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from operator import mul
from typing import NamedTuple

import torch
from torch import optim

from pipesched.profiles import DeviceKind, ProfileError
from pipesched.profiles.costs import (
    LayerCost,
    LayerMeasurement,
    LayerTie,
    LayerWork,
    Profile,
    Provenance,
    Variation,
    median_layer,
    variation_of,
)
from pipesched.profiles.measuring.background_load import Companions
from pipesched.profiles.measuring.computing import computing, device_name, library_versions
from pipesched.profiles.measuring.layer_chain import LayerChain
from pipesched.profiles.measuring.profiler_settings import ProfilerSettings
from pipesched.profiles.measuring.timing import SHORT_COUNT, Timer, yardstick_s
from pipesched.profiles.measuring.weight_costs import WeightWork
from pipesched.profiles.models import Model, build_layers, kept_random_state, make_optimizer, torch_dtype
from pipesched.profiles.processes import num_cores
from pipesched.schedules import Yardstick

OnProgress = Callable[[int, int, str], None]
"""(runs done, runs in all, name of the current measurement)."""

_TURNS, _LEAST_TURNS = 5, 3
"""Number of turns over all sizes, and the least number if a chain has several layers of a kind."""
_LEARNING_RATE = 1e-6
"""Learning rate; small, so that weights hardly change. Any rate takes the same time."""


@kept_random_state()
def profile_model(model: Model, settings: ProfilerSettings, progress: OnProgress | None = None) -> Profile:
    """Measure every layer's forward, backward, I, W, optimizer step and copies, and the bytes it keeps and outputs.

    Times are medians over the runs of a chain of layers (`LayerChain`), after the warmup. I and W have separate runs,
    and sizes take turns. Gradients accumulate over the runs, as over the micro-batches of a batch. Equal layers have
    the medians of the equal layers in the chain.

    Args:
        model: The model, run whole on one device.
        settings: Settings of the measurement.
        progress: Called after every run.

    Raises:
        ProfileError: The device is missing, or the model fails.
    """
    target = _present_device(settings.device)
    kind: DeviceKind = "cuda" if target.type == "cuda" else "cpu"
    num_busy = min(settings.companions + 1, num_cores()) if kind == "cpu" else 1
    kernels_s = [yardstick_s(num_busy, target, SHORT_COUNT)]
    with computing(settings.threads, [target]):
        dtype = torch_dtype(settings.dtype)
        chain = LayerChain(model, settings.sizes[0], seed=settings.seed, dtype=dtype, device=target)
        runs = _Runs(settings, chain, progress)
        layers, shares = _measured_layers(chain, settings, runs)
    kernels_s.append(yardstick_s(num_busy, target, SHORT_COUNT))
    provenance = Provenance(
        device=device_name(target),
        dtype=settings.dtype,
        threads=settings.threads,
        companions=settings.companions,
        optimizer=settings.optimizer,
        warmup=settings.warmup,
        repeats=settings.repeats,
        seed=settings.seed,
        host_cores=num_cores(),
        versions=library_versions(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        kind=kind,
        yardstick=Yardstick(kind, num_busy, statistics.fmean(kernels_s)),
    )
    variation = runs.variation(_passes_at(settings.sizes[-1]), shares)
    return Profile(model.name, layers, provenance, variation, ties=_ties(model, settings))


def _ties(model: Model, settings: ProfilerSettings) -> tuple[LayerTie, ...]:
    """Return the weights that layers share; one layer is built per weight to get its size."""
    ties = []
    for tie in model.ties:
        layer, name = tie[0]
        built = build_layers(model, layer, layer + 1, seed=settings.seed, dtype=torch_dtype(settings.dtype))
        layers = tuple(sorted({layer for layer, _ in tie}))
        ties.append(LayerTie(layers, built.get_parameter(f"0.{name}").nbytes))
    return tuple(ties)


def _measured_layers(
    chain: LayerChain, settings: ProfilerSettings, runs: _Runs
) -> tuple[tuple[LayerCost, ...], list[float]]:
    """Return the costs of all layers of the model, and the number of them that each layer of the chain stands for."""
    sizes, timer = settings.sizes, partial(Timer, chain.device)
    works = _weight_works(chain, settings.optimizer)
    bytes_of = {size: chain.measure_bytes(size) for size in sizes}
    passes_of: dict[int, list[_Passes]] = {}
    splits_of: dict[int, list[tuple[float, float] | None]] = {}
    with Companions(chain.model.name, settings.companions, str(chain.device), settings) as others:
        for _ in runs.turns():
            for size in sizes:
                others.use(size)
                passes_of[size] = _measure_passes(chain, size, timer(), runs)
                splits_of[size] = [None] * len(bytes_of[size])
                if settings.splits:
                    splits_of[size] = _measure_splits(chain, size, timer(), runs, bytes_of[size])
            others.use(sizes[0])
            steps = _measure_steps(chain, timer(), runs, works)
    measured = []
    for index, layer in enumerate(chain.layers):
        measurements = tuple(
            _measurement(bytes_of[size][index], passes_of[size][index], splits_of[size][index]) for size in sizes
        )
        step_s, work = steps[index]
        state_bytes = _state_bytes(works[index].optimizer)
        measured.append(LayerCost("", _num_bytes(layer.parameters()), state_bytes, step_s, measurements, work))
    layers, shares = [], [0.0] * len(measured)
    for number, name in enumerate(chain.model.layer_names):
        places = chain.places(number)
        layers.append(replace(median_layer([measured[place] for place in places]), name=name))
        for place in places:
            shares[place] += 1 / len(places)
    return tuple(layers), shares


class _Runs:
    """The runs of each measurement, and their progress.

    Measurements take turns, so that a drift of the machine's speed affects all of them. If most layers of a chain have
    equal layers in it, one run of the chain counts as several runs of a layer.
    """

    def __init__(self, settings: ProfilerSettings, chain: LayerChain, progress: OnProgress | None) -> None:
        copies = statistics.median_high(len(chain.places(number)) for number in chain.numbers)
        self._num_turns = min(max(_LEAST_TURNS, math.ceil(_TURNS / copies)), settings.repeats)
        self._repeats = max(self._num_turns, math.ceil(settings.repeats / copies))
        self._warmup = math.ceil(settings.warmup / copies)
        num_measurements = (1 + settings.splits) * len(settings.sizes) + 1
        self._total = num_measurements * (self._warmup + self._num_turns - 1 + self._repeats)
        self._progress = progress
        self._turn = 0
        self._done = 0
        self._rows: defaultdict[str, list[list[float]]] = defaultdict(list)

    def turns(self) -> Iterator[int]:
        """Yield the turns; every measurement runs once per turn."""
        for turn in range(self._num_turns):
            self._turn = turn
            yield turn

    def medians(self, run: Callable[[], list[float]], what: str) -> list[float]:
        """Return the median of each number that `run` returns, over the measured runs of all turns so far."""
        rows, share, more = self._rows[what], *divmod(self._repeats, self._num_turns)
        warmup = 1 if self._turn else self._warmup
        for number in range(warmup + share + (self._turn < more)):
            row = run()
            if number >= warmup:
                rows.append(row)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total, what)
        return [statistics.median(column) for column in zip(*rows, strict=True)]

    def variation(self, what: str, shares: Sequence[float]) -> Variation | None:
        """Return the variation of forward and backward of the whole model in the measured runs with this name.

        Args:
            what: Name of the runs.
            shares: Number of layers of the model that each layer of the chain stands for.
        """
        passes = [(row[: len(shares)], row[len(shares) : 2 * len(shares)][::-1]) for row in self._rows[what]]
        return variation_of([[sum(map(mul, shares, laps_s)) for laps_s in both] for both in passes])


def _passes_at(size: int) -> str:
    """Return the name of the measurement at a micro-batch size."""
    return f"micro-batch size {size}"


def _present_device(name: str) -> torch.device:
    """Return the device of a measurement.

    Raises:
        ProfileError: The device is missing.
    """
    try:
        target = torch.device(name)
        torch.empty(1, device=target)
    except (RuntimeError, AssertionError) as error:  # torch asserts when it was built without the accelerator
        reason = (str(error).splitlines() or ["no such device"])[0]
        raise ProfileError(
            f"profiling: device: got {name} ({reason}), expected a device of this machine; try cpu"
        ) from error
    return target


class _Passes(NamedTuple):
    """Seconds of forward and backward of one layer, and of launching both; None on synchronous devices."""

    forward_s: float
    backward_s: float
    launch_s: float | None


def _measure_passes(chain: LayerChain, size: int, timer: Timer, runs: _Runs) -> list[_Passes]:
    """Return the seconds of each layer at one micro-batch size."""
    inputs, targets = chain.batch(size)

    def run() -> list[float]:
        chain.run(inputs, targets, timer.mark)
        return [*timer.laps_s(), *timer.launches_s]

    medians, num_layers = runs.medians(run, _passes_at(size)), len(chain.layers)
    forward_s, backward_s, *launching = (medians[at : at + num_layers] for at in range(0, len(medians), num_layers))
    launches_s = (
        map(sum, zip(launching[0], reversed(launching[1]), strict=True)) if launching else repeat(None, num_layers)
    )
    return [*map(_Passes, forward_s, reversed(backward_s), launches_s)]


def _measure_splits(
    chain: LayerChain, size: int, timer: Timer, runs: _Runs, layers_bytes: Sequence[LayerMeasurement]
) -> list[tuple[float, float] | None]:
    """Return (I, W) of each layer that can be split, at one micro-batch size [s]."""
    inputs, targets = chain.batch(size)
    layers = {index for index, layer_bytes in enumerate(layers_bytes) if layer_bytes.split is not None}

    def run() -> list[float]:
        chain.run_split(inputs, targets, timer.mark, layers)
        return timer.laps_s()

    medians = runs.medians(run, f"micro-batch size {size}, I and W")
    both = list(zip(medians[::2], medians[1::2], strict=True))[::-1]
    return [seconds if index in layers else None for index, seconds in enumerate(both)]


def _measurement(layer_bytes: LayerMeasurement, passes: _Passes, split: tuple[float, float] | None) -> LayerMeasurement:
    """Return the bytes of a layer with its seconds."""
    halves = layer_bytes.split
    if halves is not None:
        halves = None if split is None else replace(halves, backward_input_s=split[0], backward_weight_s=split[1])
    return replace(layer_bytes, **passes._asdict(), split=halves)


def _weight_works(chain: LayerChain, name: str) -> list[WeightWork]:
    """Return the work on the weights of each layer; a layer with trained parameters gets an optimizer."""
    works = []
    for layer in chain.layers:
        parameters = list(layer.parameters())
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        works.append(WeightWork(parameters, make_optimizer(name, trained, _LEARNING_RATE) if trained else None))
    return works


def _measure_steps(
    chain: LayerChain, timer: Timer, runs: _Runs, works: Sequence[WeightWork]
) -> list[tuple[float, LayerWork]]:
    """Return the seconds of a step and of the other work on the weights of each layer; 0 without weights.

    Each kind of work covers the whole chain before the next, so that it finds the caches as cold as in a run. A step
    uses the gradients of the passes before it; the passes after it add to these gradients.
    """
    gradients = [(parameter, parameter.grad) for layer in chain.layers for parameter in layer.parameters()]

    def run() -> list[float]:
        timer.mark()
        for kind in (WeightWork.step, WeightWork.copy, WeightWork.predict, WeightWork.average):
            for work in works:
                kind(work)
                timer.mark()
        for parameter, gradient in gradients:
            parameter.grad = gradient  # a step takes as long with the gradients of another batch
        return timer.laps_s()

    medians = runs.medians(run, "optimizer steps")
    by_layer = (medians[index :: len(works)] for index in range(len(works)))
    return [
        (0.0 if work.optimizer is None else step_s, LayerWork(*others_s) if work.weights else LayerWork(0.0, 0.0, 0.0))
        for work, (step_s, *others_s) in zip(works, by_layer, strict=True)
    ]


def _state_bytes(optimizer: optim.Optimizer | None) -> int:
    values = (value for state in (optimizer.state if optimizer else {}).values() for value in state.values())
    return _num_bytes(value for value in values if isinstance(value, torch.Tensor))


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
