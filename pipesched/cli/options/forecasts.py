"""From options to training runs that are checked and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pipesched
from pipesched.cli.errors import InputError
from pipesched.cli.terminal import progress_bar
from pipesched.executor import LayerSettings, RunSettings
from pipesched.questions import TrainSettings
from pipesched.schedules.common import values_of

if TYPE_CHECKING:
    from pipesched.cli.options.cost_options import CostOptions
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.io import Plan
    from pipesched.profiles.models import Model
    from pipesched.schedules.transforms import ScheduleSpec
    from pipesched.workflows.training import Training

_REPEATS = 5
"""Measured runs of a profile that is only for this training."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of training runs of one model.

    Attributes:
        schedules: The specification of each run, or a plan alone.
    """

    model: Model
    schedules: Sequence[ScheduleSpec | Plan]
    costs: CostOptions
    settings: TrainSettings

    def require_possible(self) -> None:
        """Refuse costs that no training takes, and settings that no schedule follows.

        Raises:
            ArgumentError: There are such options.
        """
        from pipesched.profiles.io import Plan
        from pipesched.workflows.arguments import require_followed

        costs = self.costs
        if costs.stage_costs is not None or costs.layer_costs is not None or costs.microbatch_size is not None:
            raise InputError(
                "--stage-costs, --layer-costs and --microbatch-size: got one, expected --profile, --uniform, or "
                "nothing: then a profile is measured; --batch-size says the samples of a step"
            )
        if costs.profile is not None and costs.uniform is not None:
            raise InputError("costs: got --profile and --uniform, expected one of them; leave one out")
        if costs.partition == "balanced" and costs.uniform is not None:
            raise InputError("--partition: got balanced with --uniform, expected uniform or counts; try 2,2,1")
        specs = [schedule for schedule in self.schedules if not isinstance(schedule, Plan)]
        if len(specs) > 1 and all(spec.lists is None for spec in specs):
            require_followed({spec.name: spec.traits for spec in specs}, self.settings)

    def job(self) -> Training:
        """Return the one run, for processes that torchrun starts; nothing is predicted.

        Raises:
            ArgumentError: Options do not go together, or the partition does not fit.
        """
        profile = self.costs.profile
        cluster = {} if profile is None else {"cluster": self._cluster(self.schedules[0])}
        asked = {"is_distributed": True, "partition": self.costs.partition_text, "profile": profile, **cluster}
        return self._prepared(self.schedules[0], asked)

    def predicted(self) -> tuple[list[Training], str]:
        """Return the runs with their forecasts, and the origin of their costs; without costs, profile the model first.

        Raises:
            ArgumentError: Options do not go together, or the partition does not fit.
            ProfileError: The profile is bad, or the model fails.
            SimulationError: The time of a run cannot be predicted.
        """
        from pipesched.cli.options.uniform_costs import uniform_costs
        from pipesched.workflows.arguments import read_profile_of
        from pipesched.workflows.training import require_own_folder

        costs, share, profile = self.costs, self.costs.input_share, None
        partition = None if costs.partition == "balanced" else costs.partition_text
        checked = [self._prepared(schedule, {"partition": partition}) for schedule in self.schedules]
        require_own_folder(checked[0].checkpoints)
        lists = [training.run.lists(self.settings.num_steps) for training in checked]
        clusters = [costs.load_cluster(run_lists) for run_lists in lists]
        if costs.profile is not None:
            profile = read_profile_of(costs.profile, self.model)
        elif costs.uniform is None:
            profile = self._measured(checked)
        cuts: dict[str, Any] = {"partition": costs.partition_text}
        if costs.profile is not None or costs.partition == "balanced":
            cuts["profile"] = profile  # else a cut by a new measurement would differ each time
        trainings = []
        with progress_bar("predicting") as tick:
            for index, (schedule, run_lists, cluster) in enumerate(zip(self.schedules, lists, clusters, strict=True)):
                tick(index / len(lists))
                given = profile or uniform_costs(costs.uniform or "", run_lists if share is None else None)
                asked = {"costs": given, "cluster": cluster, "input_share": share, **cuts}
                trainings.append(self._prepared(schedule, asked))
        for training in trainings:
            assert training.forecast is not None, "it has costs"
            costs.machines.require_judged(training.forecast.costs.has_bytes)
        return trainings, self._origin(profile, lists)

    def _prepared(self, schedule: ScheduleSpec | Plan, asked: dict[str, Any]) -> Training:
        from pipesched.workflows.training import prepare_training

        return prepare_training(self.model, schedule, **self._settings_of(schedule) | asked)

    def _settings_of(self, schedule: ScheduleSpec | Plan) -> dict[str, Any]:
        """Return the settings of one of several schedules: without rules that others follow."""
        from pipesched.profiles.io import Plan

        settings = values_of(self.settings)
        if self.settings.advance is not None:
            settings["limit_bytes"] = self.costs.machines.limit_bytes()
        if len(self.schedules) > 1 and not isinstance(schedule, Plan):
            usual, traits = RunSettings(), schedule.traits
            settings |= {} if traits.prediction is not None else {"prediction": usual.prediction}
            settings |= {} if traits.averages else {"averaging": usual.averaging}
        return settings

    def _cluster(self, schedule: ScheduleSpec | Plan) -> Any:
        from pipesched.profiles.io import Plan

        spec = schedule.schedule_spec if isinstance(schedule, Plan) else schedule
        return self.costs.load_cluster(spec.run(self.settings.num_steps).beginning(1))

    def _measured(self, trainings: Sequence[Training]) -> Profile:
        """Measure the model at the micro-batch sizes of the runs."""
        sizes = [training.microbatch_size for training in trainings]
        with progress_bar(f"profiling {self.model.name}") as tick:
            return pipesched.profile(
                self.model,
                sizes,
                repeats=_REPEATS,
                warmup=1,
                progress=tick,
                **values_of(self.settings, LayerSettings),
            ).profile

    def _origin(self, profile: Profile | None, lists: Sequence[Any]) -> str:
        if profile is None:
            notes = "; ".join(self.costs.shares(*lists, named=True))
            return f"--uniform {self.costs.uniform}" + (f" ({notes})" if notes else "")
        where = "measured now" if self.costs.profile is None else str(self.costs.profile)
        return f"a profile of {profile.provenance.device}, {where}"
