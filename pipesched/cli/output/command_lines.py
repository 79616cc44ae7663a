"""The command lines that run a setting of ``tune``, and train with it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pipesched.cli.options.option_groups import setting_words
from pipesched.cli.options.torch_options import RunOptions
from pipesched.questions import OF_PROCESSES, TrainSettings
from pipesched.schedules.common import values_of

if TYPE_CHECKING:
    from pipesched.cli.options.tune_options import TunedModel
    from pipesched.simulator.search import Setting
    from pipesched.simulator.tuner import Problem

_NOT_TUNED = {"prediction", "averaging"}
"""Options of runs without a meaning for tuned schedules, or for schedules without averaging."""


@dataclass(frozen=True, slots=True)
class CommandLines:
    """Makes the lines, with the options of `runs` that differ from their defaults."""

    problem: Problem
    given: TunedModel
    runs: RunOptions

    def __call__(self, setting: Setting) -> dict[str, str]:
        """Return the line that runs `setting`, and the one that trains with it if the profile is of a model.

        ``-m`` of both counts the micro-batches of all pipelines together.
        """
        from pipesched.profiles.io import costs_file_of

        size = self.problem.microbatch_size(setting)
        model, schedule = self.problem.profile.model, self._schedule(setting)
        cut = ["--partition", ",".join(map(str, self.problem.partition_of(setting)))]
        share = [] if self.given.input_share is None else ["--input-share", f"{self.given.input_share:g}"]
        profile = ["--profile", self.given.model, *share] if self.given.is_file else []
        sized = ["--microbatch-size", str(size)]
        if costs_file_of(model) is not None:
            return {"run": _line("run", *schedule, *profile, *cut, *sized, *self._options(setting, RunOptions))}
        batch = ["--batch-size", str(self.problem.batch_size)]
        return {
            "run": _line("run", *schedule, "--model", model, *cut, *sized, *self._options(setting, RunOptions)),
            "train": _line("train", model, *schedule, *profile, *cut, *batch, *self._options(setting, TrainSettings)),
        }

    def lines(self, setting: Setting) -> list[str]:
        """Return the same lines, indented for a caption."""
        return [f"    {line}" for line in self(setting).values()]

    def warnings(self) -> list[str]:
        """Return a warning if a file, and not the user, names the code that the lines import."""
        from pipesched.profiles.io import costs_file_of, imports_of

        model = self.problem.profile.model
        file = None if costs_file_of(model) is not None else imports_of(model)
        return [] if file is None else [f"these lines import {model}, as {file} says: run them only if it is yours"]

    def _schedule(self, setting: Setting) -> list[str]:
        simplest = setting.simplest
        words = ["-s", simplest.schedule, "-p", str(setting.num_ranks), "-m", str(setting.num_microbatches)]
        words += [] if setting.num_chunks is None else ["-v", str(setting.num_chunks)]
        words += [word for name, value in simplest.parameters for word in ("--set", f"{name}={value}")]
        words += ["--recompute", "all"] if setting.recomputes else []
        return [*words, *(["--recompute-when", "late"] if setting.recompute_when == "late" else [])]

    def _options(self, setting: Setting, kind: type[RunOptions | TrainSettings]) -> list[str]:
        """Return the options of `runs` that `kind` has too, if they differ from their defaults."""
        untold = set(_NOT_TUNED) if setting.num_pipelines == 1 else {"prediction"}
        untold |= set(OF_PROCESSES) if kind is TrainSettings else set()  # it trains in one process
        default, shared = RunOptions(), {field.name for field in fields(kind)} - untold
        values = {name: value for name, value in values_of(self.runs).items() if name in shared}
        given = {name: value for name, value in values.items() if value != getattr(default, name)}
        return [word for name, value in given.items() for word in setting_words(name, value)]


def _line(*words: str) -> str:
    return shlex.join(["pipesched", *words])
