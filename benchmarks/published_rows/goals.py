"""The goals of the predictions, with the figure that the rows give."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from published_rows.comparison import Compared, groups_of, mean_correlation, same_setting, schedule_ratios, summary_of
from published_rows.row import PublishedRun


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: rows, figure and limit.

    Attributes:
        text: Description of the figure.
        prefixes: First parts of the names of the rows.
        figure: Function from the rows to the figure, or None without enough rows.
        limit: Limit of the figure.
        is_least: The figure must reach the limit, otherwise it must stay below.
    """

    text: str
    prefixes: tuple[str, ...]
    figure: Callable[[Sequence[Compared]], float | None]
    limit: float
    is_least: bool = False

    def rows_of(self, rows: Sequence[Compared]) -> list[Compared]:
        """Return the rows of the goal."""
        return [row for row in rows if row.run.id.split("-")[0] in self.prefixes]

    def is_met(self, figure: float) -> bool:
        """Return whether the figure meets the limit."""
        return figure >= self.limit if self.is_least else figure <= self.limit


def time_median(rows: Sequence[Compared]) -> float | None:
    """Return the median of the absolute errors of time."""
    summary = summary_of(row.time_error for row in rows)
    return summary.median_size if summary else None


def memory_median(rows: Sequence[Compared]) -> float | None:
    """Return the median of the absolute errors of peak memory."""
    summary = summary_of(row.memory_error for row in rows)
    return summary.median_size if summary else None


def clean_time_median(rows: Sequence[Compared]) -> float | None:
    """Return the median of the absolute errors of time of rows that the host does not bind."""
    return time_median([row for row in rows if not is_host_bound(row.run)])


def is_host_bound(run: PublishedRun) -> bool:
    """Return whether the note says that the host binds the time."""
    return "host-bound" in run.note


def fit_share(rows: Sequence[Compared]) -> float | None:
    """Return the share of rows that fit or fail as predicted."""
    answers = [row.is_fit_right for row in rows if row.is_fit_right is not None]
    return statistics.mean(answers) if answers else None


def correlation(rows: Sequence[Compared]) -> float | None:
    """Return the mean rank correlation of comparable settings."""
    return mean_correlation(groups_of(rows))


def batch_correlation(rows: Sequence[Compared]) -> float | None:
    """Return the mean rank correlation of rows with the same GPUs and batch."""
    return mean_correlation(groups_of(rows, lambda run: (run.n_gpus, run.global_batch)))


def batch_regret(rows: Sequence[Compared]) -> float | None:
    """Return the regret of the predicted best of the largest group with the same GPUs and batch."""
    groups = groups_of(rows, lambda run: (run.n_gpus, run.global_batch))
    return max(groups, key=lambda group: group.count).regret if groups else None


def model_regret(rows: Sequence[Compared]) -> float | None:
    """Return the regret of the predicted best of the largest group with one model: the choice of a plan."""
    groups = groups_of(rows, lambda run: (*same_setting(run), run.layers, run.hidden))
    return max(groups, key=lambda group: group.count).regret if groups else None


def gpu_correlation(rows: Sequence[Compared]) -> float | None:
    """Return the mean rank correlation of rows on the same GPU."""
    return mean_correlation(groups_of(rows, lambda run: (run.gpu,)))


def ratio_points(rows: Sequence[Compared]) -> float | None:
    """Return the largest difference between a predicted and a measured ratio of schedules."""
    return max((abs(ratio.predicted - ratio.measured) for ratio in schedule_ratios(rows)), default=None)


GOALS = (
    Goal("SimuMax, B200: time, median error", ("simumax",), time_median, 0.04),
    Goal("SimuMax, B200: memory, median error", ("simumax",), memory_median, 0.01),
    Goal("BigScience, A100: time, median error", ("bigscience",), time_median, 0.08),
    Goal("BigScience, A100: rank correlation per batch size", ("bigscience",), batch_correlation, 0.85, is_least=True),
    Goal("BigScience, A100: regret of the predicted best", ("bigscience",), batch_regret, 0.03),
    Goal("BigScience, A100: regret of a plan, among settings of one model", ("bigscience",), model_regret, 0.03),
    Goal("BigScience, A100: memory, median error", ("bigscience",), memory_median, 0.06),
    Goal("Ultra-Scale Playbook, H100: fits or fails", ("nanotron",), fit_share, 0.95, is_least=True),
    Goal("Ultra-Scale Playbook, H100: memory, median error", ("nanotron",), memory_median, 0.05),
    Goal("Ultra-Scale Playbook, H100: time of clean rows, median error", ("nanotron",), clean_time_median, 0.12),
    Goal("Ultra-Scale Playbook, H100: rank correlation", ("nanotron",), correlation, 0.9, is_least=True),
    Goal("Megatron-Bridge: rank correlation per GPU", ("bridge",), gpu_correlation, 0.9, is_least=True),
    Goal("Megatron-Bridge: time, median error", ("bridge",), time_median, 0.15),
    Goal("Megatron-LM CI: memory, median error", ("mlmci",), memory_median, 0.08),
    Goal("Primus: ratio to another schedule, largest difference", ("primus",), ratio_points, 0.03),
    Goal(
        "torchtitan, llm-foundry, InternEvo: time, median error", ("titan", "foundry", "internevo"), time_median, 0.12
    ),
)
"""The goals, in the order of the page."""
