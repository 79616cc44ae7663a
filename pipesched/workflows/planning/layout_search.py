"""The result of a search over layouts: the layouts that fit, the fastest first, with their rates per GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

from pipesched.profiles.costs import MatmulPrecision, TrainingRates
from pipesched.profiles.inside_stage import ModelShape
from pipesched.questions import TrainerName
from pipesched.simulator.analysis import CellValue, readable_bytes
from pipesched.simulator.planner import LayoutRequest, PlanRanking, TransformerLayout
from pipesched.simulator.search import Outcome, least
from pipesched.workflows import ArgumentError, Result, Table, estimate_data, notes_of_estimate
from pipesched.workflows.exporting import PipelineSetting, TrainerRule, export_setting
from pipesched.workflows.planning.layout_choices import SPLITS, LayoutChoice, choices_of, choices_table, layout_choices
from pipesched.workflows.planning.partitioning import number_ranges

if TYPE_CHECKING:
    import pandas as pd

_LEGEND = {
    "s": "seconds of a step",
    "tok/s": "tokens per second of a GPU",
    "MFU": "FLOPs of the model per peak, with the full square of attention",
    "GiB": "peak memory of a GPU",
    "pp": "ranks of a pipeline",
    "v": "stages of a rank",
    "tp": "tensor and sequence",
    "cp": "context",
    "ep": "experts",
    "dp": "data",
    "z": "ZeRO",
    "mbs": "samples of a micro-batch",
    "free": "memory of a GPU that stays free",
}
"""The meaning of the columns."""


@dataclass(frozen=True, slots=True, repr=False)
class LayoutSearch(Result):
    """The result of a search over the layouts of a transformer; all numbers are estimates.

    Attributes:
        request: The request; its `memory_bytes` are the share of a GPU's memory that layouts may fill.
        ranking: The layouts that fit, the fastest first, and the layouts that do not.
        gpu_bytes: Memory of a GPU [bytes].
    """

    request: LayoutRequest
    ranking: PlanRanking
    gpu_bytes: int

    @property
    def best(self) -> Outcome | None:
        """The fastest layout that fits, or None if nothing fits."""
        return next(iter(self.ranking.ranked), None)

    def rates(self, outcome: Outcome) -> TrainingRates:
        """Return tokens per second, FLOP/s and MFU of one GPU under a layout."""
        request = self.request
        assert outcome.seconds is not None, "a ranked layout has its time"
        peak = request.gpu.flops_per_s[request.base.precision]
        return request.shape.sample_work(peak).rates(outcome.samples, outcome.seconds, request.num_gpus)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on the factor and the errors of estimates."""
        return tuple(notes_of_estimate(self.request.gpu.family, self.request.base.fit_factor))

    @property
    def choices(self) -> list[LayoutChoice]:
        """Each single choice with the number of its layouts and their fastest, which show why it was not taken."""
        return layout_choices(self.request, self.ranking)

    @property
    def nothing_fits(self) -> str:
        """A line on the layout that needs the least memory, for a search that found none that fits."""
        nearest = least(self.ranking.rejected)
        if nearest is None:
            rejected = self.ranking.rejected
            refused = next((outcome for outcome in rejected if outcome.held_bytes is None), rejected[0])
            return f"plan: no layout can be predicted; the reason of the first: {refused.reason}"
        is_near = (nearest.held_bytes or 0) <= self.gpu_bytes
        advice = "`memory_margin=0`, or more GPUs" if is_near else "more GPUs"
        return (
            f"plan: no layout fits into {self._limit_text}: the nearest is {nearest.setting}, which needs "
            f"{readable_bytes(nearest.held_bytes)}; try {advice}"
        )

    def export(self, trainer: TrainerName) -> str:
        """Return the fastest layout that a trainer can run, as its flags or configuration.

        Raises:
            ArgumentError: No ranked layout can be exported; the message names the part of the best and the reason.
        """
        require_exportable_shape(self.request.shape, trainer, self.request.base.precision)
        ranked, rule = self.ranking.ranked, TrainerRule(trainer)
        if not ranked:
            raise ArgumentError("plan: got no layout that fits, expected one; try more GPUs")
        best = next((outcome for outcome in ranked if rule(outcome.setting) is None), ranked[0])
        row = self._row(best)
        assert isinstance(best.setting, TransformerLayout), "a layout"
        setting = PipelineSetting.of_layout(best.setting, f"{row['s']} s per step, {row['GiB']} GiB on a GPU")
        return export_setting(setting, trainer)

    @property
    def trainers(self) -> dict[TrainerName, tuple[int, ...]]:
        """The numbers of the ranked layouts, from 1, that each trainer can run."""
        numbered = [*enumerate(self._layouts, 1)]
        return {
            name: tuple(number for number, layout in numbered if self._refusal(name, layout) is None)
            for name in get_args(TrainerName)
        }

    def _refusal(self, trainer: TrainerName, layout: TransformerLayout) -> str | None:
        """Return why a trainer cannot run a layout of the model, or None if it can."""
        try:
            require_exportable_shape(self.request.shape, trainer, self.request.base.precision)
        except ArgumentError as error:
            return str(error)
        return TrainerRule(trainer)(layout)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per layout that fits, the fastest first."""
        import pandas as pd

        return pd.DataFrame(self._data())

    def to_rows(self) -> list[dict[str, CellValue]]:
        """Return a row of numbers and words per layout that fits; a list of numbers is one word, ``3,3,2``."""
        return [
            {
                name: ",".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
                for name, value in layout.items()
            }
            for layout in self._data()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched plan --json`` prints it."""
        ranking, request = self.ranking, self.request
        return {
            "model": request.shape.name,
            "gpu": request.gpu.name,
            "num_gpus": request.num_gpus,
            "batch_size": request.batch_size,
            "estimated": True,
            "memory_bytes": self.gpu_bytes,
            "memory_limit_bytes": request.memory_bytes,
            "candidates": len(ranking.considered),
            "predicted": ranking.num_predicted,
            "complete": ranking.is_complete,
            "headroom": ranking.headroom if ranking.ranked else None,
            "estimate_errors": estimate_data(request.gpu.family),
            "layouts": self._data(),
            "choices": [asdict(choice) for choice in self.choices],
            "trainers": self.trainers,
        }

    def table(self) -> Table:
        """Return a row per layout that fits; below, the effort of the search and the trainers that run each."""
        request = self.request
        title = (
            f"{request.shape.name}, {request.batch_size} samples of {request.shape.sequence} tokens per batch, "
            f"{request.num_gpus} x {request.gpu.name} (estimated)"
        )
        rows = [{"": str(number), **self._row(outcome)} for number, outcome in enumerate(self.ranking.ranked, 1)]
        equal = {name: rows[0][name] for name in SPLITS if rows and len({row[name] for row in rows}) == 1}
        shown = tuple({name: value for name, value in row.items() if name not in equal} for row in rows)
        common = ", ".join(f"{name} {value}" for name, value in equal.items())
        caption = [*([f"all: {common}"] if common else []), self._effort]
        caption += [f"layouts fill at most {self._limit_text} (--memory-margin)"]
        runs = self.trainers
        trainers = [f"{name} {number_ranges(numbers) or 'none'}" for name, numbers in runs.items()]
        caption += [f"layouts that each trainer can run (--export): {'; '.join(trainers)}"] if rows else []
        if rows and not any(runs.values()):
            first = next(iter(runs))
            caption += [f"  {first}: {(self._refusal(first, self._layouts[0]) or '').removeprefix('trainer: ')}"]
        return Table(title, shown, "\n".join(caption), _LEGEND)

    def choices_table(self) -> Table:
        """Return a row per choice alone."""
        return choices_table(self.request, self.ranking)

    @property
    def _limit_text(self) -> str:
        limit = self.request.memory_bytes or 0
        share = f", {limit / self.gpu_bytes:.0%} of {readable_bytes(self.gpu_bytes)}" if limit < self.gpu_bytes else ""
        return f"{readable_bytes(limit)}{share}"

    @property
    def _layouts(self) -> list[TransformerLayout]:
        settings = [outcome.setting for outcome in self.ranking.ranked]
        return [setting for setting in settings if isinstance(setting, TransformerLayout)]

    @property
    def _effort(self) -> str:
        ranking = self.ranking
        over = sum(outcome.seconds is None and outcome.held_bytes is not None for outcome in ranking.rejected)
        text = f"{len(ranking.considered)} layouts, {over} over memory by a bound, {ranking.num_predicted} simulated; "
        if ranking.is_complete:
            return text + "none of the others is faster"
        return text + f"stopped early: another layout may be {ranking.headroom:.1%} faster{ranking.shortage}"

    def _data(self) -> list[dict[str, Any]]:
        return [
            {
                **{SPLITS[name]: value for name, value in choices_of(layout).items()},
                "num_microbatches": layout.num_microbatches,
                "partition": layout.partition,
                "seconds": outcome.seconds,
                "tokens_per_s_per_gpu": rates.tokens_per_s,
                "flops_per_s_per_gpu": rates.flops_per_s,
                "mfu": rates.utilization,
                "peak_bytes": outcome.held_bytes,
                "device_bytes": outcome.device_bytes,
            }
            for layout, outcome, rates in zip(
                self._layouts, self.ranking.ranked, map(self.rates, self.ranking.ranked), strict=True
            )
        ]

    def _row(self, outcome: Outcome) -> dict[str, str]:
        layout, rates = outcome.setting, self.rates(outcome)
        assert isinstance(layout, TransformerLayout), "a layout"
        return {
            "s": f"{outcome.seconds:.4g}",
            "tok/s": f"{rates.tokens_per_s:.0f}",
            "MFU": f"{rates.utilization:.1%}",
            "GiB": f"{(outcome.held_bytes or 0) / 2**30:.1f}",
            **{name: "-" if value is None else str(value) for name, value in choices_of(layout).items()},
            "free": f"{1 - (outcome.held_bytes or 0) / self.gpu_bytes:.0%}",  # last, as narrow terminals leave it out
        }

    def __repr__(self) -> str:
        best = "nothing fits" if self.best is None else f"{self.best.setting}, {self.best.seconds:.4g} s"
        return f"LayoutSearch({self.request.shape.name!r}: {best})"


def require_exportable_shape(shape: ModelShape, trainer: TrainerName, precision: MatmulPrecision) -> None:
    """Refuse a model with layers for which no flags of the trainer are written here.

    Raises:
        ArgumentError: The model has blocks of multi-token prediction, or experts whose precision the trainer lacks.
    """
    if trainer == "torchtitan" and precision == "float8" and shape.experts is not None:
        raise ArgumentError(
            f"precision: got float8 for the experts of {shape.name}, expected bfloat16 or float32, as torchtitan "
            "pipelines have no float8 experts; try `precision=bfloat16`"
        )
    if shape.predicted_tokens:
        raise ArgumentError(
            f"trainer: got {shape.name} with multi-token prediction ({shape.predicted_tokens}), expected no such "
            "prediction, as the export has no flags for it; try the model with mtp=0"
        )
