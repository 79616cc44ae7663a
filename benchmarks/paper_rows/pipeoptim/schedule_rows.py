"""Versions, predictions and their memory: Figs 1 and 2, Tables I and II, Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import pipesched
from paper_rows.figure import Outcome, Verdict, verdict_of
from paper_rows.plain_loop import largest_error
from pipesched.executor.core import Predictor
from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.schedules.weights import first_uses, staleness

_STAGES, _FIFTH, _RUN = 4, 4, 64
_EXACT = 1e-12


def _fifth(scheme: str) -> tuple[list[int], list[int], list[int]]:
    """Return of the fifth mini-batch, by stage: versions of F from 1, steps of its look-ahead, versions of B from 1."""
    forwards, backwards = first_uses(build(scheme, _STAGES, 8), _FIFTH + 1)
    stages = range(_STAGES)
    ops = [forwards[stage, _FIFTH].op for stage in stages]
    return (
        [op.version + 1 for op in ops],
        [op.lookahead for op in ops],
        [backwards[stage, _FIFTH].op.version + 1 for stage in stages],
    )


def _share_at_work(scheme: str, microbatches: int) -> float:
    setup = pipesched.Setup(pipesched.DeviceCost(forward_s=1.0, backward_s=2.0))
    made = pipesched.simulate(build(scheme, _STAGES, microbatches), setup)
    return sum(device.busy_s for device in made.metrics.devices) / (_STAGES * made.makespan_s)


def fig_1() -> Outcome:
    versions, _, _ = _fifth("pipedream")
    shares = [_share_at_work("naive", 4), _share_at_work("gpipe", 4), _share_at_work("pipedream", 1000)]
    return Outcome(
        "PipeDream's fifth forward reads W2, W3, W4, W5; GPUs work 1/4, 4/7, all of the time",
        f"W{', W'.join(map(str, versions))}; {', '.join(f'{share:.1%}' for share in shares)}",
        verdict_of([*versions, *shares], [2, 3, 4, 5, 1 / 4, 4 / 7, 1], 0.005),
        "Naive, GPipe with four micro-batches, and 1,000 mini-batches of PipeDream, by the op lists.",
    )


def fig_2() -> Outcome:
    versions, steps, backwards = _fifth("pipeoptim")
    return Outcome(
        "forwards look 3, 2, 1, 0 ahead, to W5; backwards read W5",
        f"{', '.join(map(str, steps))} ahead, from W{', W'.join(map(str, versions))}; "
        f"backwards W{', W'.join(map(str, backwards))}",
        verdict_of(
            [*steps, *(a + b for a, b in zip(versions, steps, strict=True)), *backwards],
            [3, 2, 1, 0, *[5] * 8],
            0.001,
        ),
    )


def table_i() -> Outcome:
    errors = {name: _prediction_error(name) for name in ("SGDM", "Adam", "AdamW")}
    return Outcome(
        "m of SGDM; m_hat / (sqrt(v_hat) + eps) of Adam and AdamW",
        ", ".join(f"{name} {error:.0e}" for name, error in errors.items()),
        Verdict.AGREES if max(errors.values()) < _EXACT else Verdict.DIFFERS,
        "Largest difference of predicted weights from the formulas, evaluated beside the optimizer in float64; it "
        "agrees below 1e-12.",
    )


_OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "SGDM": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.05),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.05),
}


def _prediction_error(name: str) -> float:
    """Return the largest difference of three predicted steps from the formula, after each of five steps."""
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(6, generator=random, dtype=torch.float64).requires_grad_()
    optimizer = _OPTIMIZERS[name]([weights])
    predictor = Predictor(optimizer, PredictionRule.OPTIMIZER)
    first, second, errors = torch.zeros(6), torch.zeros(6), []
    for step in range(1, 6):
        gradient = torch.randn(6, generator=random, dtype=torch.float64)
        weights.grad = gradient
        predictor.observe()
        optimizer.step()
        if name == "SGDM":
            first = 0.9 * first + gradient
            delta = first
        else:
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            delta = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        predicted = weights.detach().clone()
        predictor.move({weights: predicted}, 3)
        errors.append(float((predicted - (weights.detach() - 0.05 * 3 * delta)).abs().max()))
    return max(errors)


_COPIES = {
    "pipedream": [4, 3, 2, 1],
    "pipedream_2bw": [2, 2, 2, 2],
    "spectrain": [2, 2, 2, 2],
    "xpipe": [2, 2, 2, 2],
    "pipeoptim": [2, 2, 2, 1],
}
"""Copies of the weights on four stages by Table II, whose [M, D M] is from the last stage to the first."""


def table_ii() -> Outcome:
    copies = {scheme: _copies(scheme) for scheme in _COPIES}
    results = [count for counts in copies.values() for count in counts]
    published = [count for counts in _COPIES.values() for count in counts]
    return Outcome(
        "PipeDream M to 4 M, 2BW, SpecTrain, XPipe 2 M, PipeOptim M to 2 M",
        "; ".join(f"{scheme} {','.join(map(str, counts))}" for scheme, counts in copies.items()),
        verdict_of(results, published, 0.001),
        "Most copies of the weights on a stage at once, first to last stage, by the op lists of four stages.",
    )


def _copies(scheme: str) -> list[int]:
    lists = ScheduleSpec(name=scheme, num_ranks=_STAGES, num_microbatches=_STAGES).run(16).lists(16)
    return [stage.live_copies for stage in staleness(lists).stages]


def _error(seed: int) -> float:
    return largest_error("pipeoptim", seed, 0.9, behind=lambda stage: 2 - stage, ahead=lambda stage: 2 - stage)


def algorithm_1() -> Outcome:
    errors = [_error(seed) for seed in range(3)]
    return Outcome(
        "F with predicted weights, B with the newest ones",
        f"losses differ by at most {max(errors):.0e} over 3 seeds",
        Verdict.AGREES if max(errors) < _EXACT else Verdict.DIFFERS,
        "Three stages, 12 steps of SGDM in float64, beside a plain loop; it agrees below 1e-12.",
    )
