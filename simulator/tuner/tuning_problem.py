"""A problem of the tuner, with the costs and the pipelines of its settings, which are made once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeAlias

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Profile, StageCosts
from pipesched.profiles.io import Plan
from pipesched.profiles.partitioning import cut_layers, is_searched
from pipesched.schedules import Schedule
from pipesched.schedules.builders import one_pipeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute, with_tied_sum
from pipesched.simulator import USUAL_NETWORK, NetworkOptions
from pipesched.simulator.fast import EqualPipelines
from pipesched.simulator.search import CutTask, Kept, Outcome, Setting, costs_of_cuts, fastest_cut, plan_of

_Cut: TypeAlias = tuple[Profile, tuple[tuple[int, int], ...]]
"""A profile, and the first layer of each stage and the layer behind its last."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the tuner: the common inputs of all its settings.

    Attributes:
        profile: Profile of the model.
        batch_size: Samples in the batch of one pipeline.
        cluster: Cluster with memory and one device per device of the pipeline.
        partition: How layers are cut into stages, as in `cut_layers`; the default is the fastest for each setting.
        network: How messages go.
    """

    profile: Profile
    batch_size: int
    cluster: Cluster
    partition: str | None = None
    network: NetworkOptions = USUAL_NETWORK
    cuts: Kept[_Cut] = field(default_factory=lambda: Kept(1024), init=False, repr=False, compare=False)
    made: Kept[EqualPipelines] = field(default_factory=lambda: Kept(8), init=False, repr=False, compare=False)

    def covers(self, num_microbatches: int) -> bool:
        """Whether the batch can be cut into these micro-batches, and the profile covers their size."""
        size, left = divmod(self.batch_size, num_microbatches)
        return not left and self.profile.covers(size)

    def costs(self, setting: Setting) -> StageCosts:
        """Return the costs of a setting's stages; all pipelines share the devices.

        Raises:
            ProfileError: The batch cannot be cut into the micro-batches, the profile does not cover their size, there
                are fewer layers than stages, or averaged pipelines have stages that share parameters.
            ScheduleError: The schedule cannot have these counts.
        """
        profile, bounds = self._cut(setting)
        tied_bytes, tied = profile.tied_sum(bounds)
        if tied_bytes and setting.num_pipelines > 1:
            raise ProfileError(
                f"got tied stages {', '.join(map(str, tied or (0, len(bounds) - 1)))}, expected one pipeline, as each "
                "averaged pipeline steps by itself; try pipelines=1, or untie the weights"
            )
        num_sharing = setting.num_pipelines if profile.sharing else 1  # without a price they are the same for all
        return costs_of_cuts(profile, len(bounds), self.microbatch_size(setting), num_sharing)(bounds)

    def bounds(self, setting: Setting) -> tuple[tuple[int, int], ...]:
        """Return the layers of each stage: as requested, the fastest cut found, or balanced for several pipelines.

        Raises:
            ProfileError: The batch cannot be cut into the micro-batches, the profile does not cover their size, or
                there are fewer layers than stages.
            ScheduleError: The schedule cannot have these counts.
        """
        return self._cut(setting)[1]

    def _cut(self, setting: Setting) -> _Cut:
        """Return the profile and the bounds of the stages in it.

        The layers of the profile are in the order of the stages, unless the cut is searched.
        """
        size, lists, profile = self.microbatch_size(setting), self.lists(setting), self.profile
        num_stages = lists.num_stages

        def search() -> _Cut:
            costs_of = costs_of_cuts(profile, num_stages, size)
            task = CutTask(lists, len(profile.layers), costs_of, self.cluster, self.network)
            return profile, tuple(pairwise(accumulate(fastest_cut(task), initial=0)))

        if setting.num_pipelines == 1 and is_searched(profile, self.partition, num_stages):
            return self.cuts.get((), setting, search)
        key = size, num_stages  # several pipelines drift: the busiest counts
        return self.cuts.get((), key, lambda: cut_layers(profile, self.partition, size, num_stages))

    def lists(self, setting: Setting) -> Schedule:
        """Return the lists of one pipeline of a setting, lowered, without tied sums; all pipelines have the same.

        Raises:
            ScheduleError: The schedule cannot have these counts.
        """
        return _one_pipeline(_alike(setting))

    def all_lists(self, setting: Setting, costs: StageCosts) -> Schedule:
        """Return the lists of all pipelines of a setting, with the sum of tied gradients.

        Raises:
            ScheduleError: The schedule cannot have these counts, or cannot sum before its Steps.
        """
        return with_tied_sum(setting.build(), costs.tied_stages) if costs.tied_bytes else setting.build()

    def pipelines(self, setting: Setting, costs: StageCosts) -> EqualPipelines:
        """Return the pipelines of a setting, of which one stands for any number.

        Raises:
            ScheduleError, SimulationError: The lists cannot run.
        """

        def make() -> EqualPipelines:
            # tied stages have one pipeline, which averages nothing
            is_tied = costs.tied_bytes > 0
            lists = with_tied_sum(_one_pipeline(setting), costs.tied_stages) if is_tied else self.lists(setting)
            return EqualPipelines(lists, costs, self.cluster, self.network)

        return self.made.get((costs,), _alike(setting), make)

    def microbatch_size(self, setting: Setting) -> int:
        """Return the samples of each micro-batch of a setting.

        Raises:
            ProfileError: The batch cannot be cut so.
        """
        size, left = divmod(self.batch_size, setting.num_each)
        if left:
            raise ProfileError(
                f"got a batch of {self.batch_size} samples in {setting.num_each} micro-batches, expected micro-batches "
                "of equal size"
            )
        return size

    def partition_of(self, setting: Setting) -> tuple[int, ...]:
        """Return the layers of each stage; raises as `bounds` does."""
        return tuple(last - first for first, last in self.bounds(setting))

    def plan_of(self, outcome: Outcome) -> Plan:
        """Return the plan of a setting whose time is known."""
        setting, size = outcome.setting.simplest, self.microbatch_size(outcome.setting)
        setting = replace(setting, partition=self.partition_of(outcome.setting), microbatch_size=size)
        samples = size * setting.schedule_spec().run(1).microbatches_per_step
        return plan_of(replace(outcome, setting=setting), samples, self.profile, self.cluster)


def _alike(setting: Setting) -> Setting:
    """Return a setting with the same lists per pipeline; it has two pipelines if it can have several."""
    return setting if setting.advance is None else setting.in_pipelines(2, setting.advance)


@lru_cache(maxsize=8)
def _one_pipeline(setting: Setting) -> Schedule:
    """Return the lowered lists. R is inserted after lowering, because no message depends on R."""
    if setting.recompute_when is not None:
        return recompute(_one_pipeline(replace(setting, recompute_when=None)), None, setting.recompute_when)
    if setting.advance is None:
        return lower(setting.build())
    return lower(one_pipeline(setting.num_ranks, setting.num_each, setting.num_pipelines, setting.advance))
