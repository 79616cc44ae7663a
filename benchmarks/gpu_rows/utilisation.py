"""Utilisation over the micro-batch size, and AvgPipe's settings on one device: predicted, measured, chosen."""

from __future__ import annotations

from collections.abc import Iterator

import pipesched
from gpu_rows.card import Card
from gpu_rows.model_runs import profiled, settings_of, streamed
from gpu_rows.row import Row
from pipesched.simulator.analysis import readable_s
from pipesched.simulator.search import Setting
from pipesched.workflows.tuning import Measurement, rank_correlation

MODEL, BATCH, MICROBATCHES = "gpt:layers=8,width=320,heads=8,context=512", 128, (1, 2, 4, 8)
TINY, TINY_BATCH, TINY_MICROBATCHES = "gpt:layers=2,width=32,heads=2,context=16", 8, (1, 2)
PIPELINES = (1, 2, 3, 4)
LIMIT = 0.05


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    model, batch = card.pick((MODEL, BATCH), (TINY, TINY_BATCH))
    microbatches, pipelines = card.pick((MICROBATCHES, PIPELINES), (TINY_MICROBATCHES, (1, 2)))
    sizes = tuple(sorted(batch // m for m in microbatches))
    profile = profiled(card.kind, settings_of(card).dtype, model, sizes)
    whole = ((0, len(profile.layers)),)
    yield f"`{model}`, batches of {batch} samples, one stage on one device. Utilisation, by micro-batch size:"
    yield ", ".join(
        f"{size}: {profile.costs_of_layers(whole, size).stages[0].utilisation:.2f}" for size in sizes
    ) + "."  # fmt: skip
    yield ""
    yield "| M, N | predicted | measured | error |"
    yield "|---|---|---|---|"
    result = pipesched.tune(
        pipesched.Setup(profile, partition="uniform"), batch_size=batch, num_devices=1, microbatches=microbatches,
        pipelines=pipelines, advances=[0], num_workers=1,
    )  # fmt: skip
    measure = Measurement(
        result.problem,
        settings_of(card, iterations=card.pick(3, 2)),
        drift=card.pick(3, 2),
        runs=lambda spec, tick: streamed(spec),  # noqa: ARG005
    )
    predicted_s = {outcome.setting: outcome.seconds for outcome in result.outcomes if outcome.seconds is not None}
    measured_s = dict[Setting, float]()

    def row(named: _Named) -> str:
        predicted, measured = predicted_s[named.setting], measure(named.setting).seconds
        assert measured is not None, "it was run"
        measured_s[named.setting] = measured
        return f"| {named} | {readable_s(predicted)} | {readable_s(measured)} | {predicted / measured - 1:+.1%} |"

    yield from card.rows(map(_Named, predicted_s), row, 4.0)
    yield ""
    if not measured_s:
        yield "No setting was measured."
        return
    chosen = min(measured_s, key=predicted_s.__getitem__)
    best = min(measured_s, key=measured_s.__getitem__)
    correlation = rank_correlation(*([seconds[key] for key in measured_s] for seconds in (predicted_s, measured_s)))
    yield (
        f"Of {len(measured_s)} measured settings the tuner chooses ({_Named(chosen)}); the fastest is ({_Named(best)});"
        f" regret {measured_s[chosen] / measured_s[best] - 1:.1%}; rank correlation "
        f"{'-' if correlation is None else f'{correlation:.2f}'}."
    )


class _Named:
    """A setting that is shown as its M and N."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __str__(self) -> str:
        return f"{self.setting.num_each}, {self.setting.num_pipelines}"


ROW = Row("Utilisation and the tuner's choice", f"regret of at most {LIMIT:.0%}", 65.0, lines)
