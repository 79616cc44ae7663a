"""A problem of the tuner, with the costs and the pipelines of its settings, which are made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Profile, StageCosts, costs_of_stages
from pipesched.profiles.partitioning import cut_profile
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import USUAL_NETWORK, NetworkOptions
from pipesched.simulator.fast import EqualPipelines
from pipesched.simulator.tuner.setting import Setting

MadeT = TypeVar("MadeT")


class _Made:
    """What was made last for a problem, under keys that are quicker to look up than all that it was made of."""

    def __init__(self) -> None:
        self.costs: dict[Hashable, StageCosts] = {}
        self.pipelines: dict[Hashable, EqualPipelines] = {}

    def __reduce__(self) -> tuple[type[_Made], tuple[()]]:
        return _Made, ()  # another process makes its own


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the tuner: what all its settings have in common.

    Attributes:
        profile: Profile of the model.
        batch_size: Samples in the batch of one pipeline.
        cluster: Cluster of as many devices as the pipeline has, with their memory.
        partition: How layers are cut into stages, as in `cut_profile`.
        network: How messages go.
    """

    profile: Profile
    batch_size: int
    cluster: Cluster
    partition: str | None = None
    network: NetworkOptions = USUAL_NETWORK
    made: _Made = field(default_factory=_Made, init=False, repr=False, compare=False)

    def covers(self, num_microbatches: int) -> bool:
        """Whether a batch can be cut so, and the profile knows micro-batches of that size."""
        size, left = divmod(self.batch_size, num_microbatches)
        return not left and self.profile.covers(size)

    def costs(self, num_microbatches: int, num_stages: int, num_pipelines: int = 1) -> StageCosts:
        """Return what the stages cost if a batch is cut into so many micro-batches, and pipelines share the devices.

        Raises:
            ProfileError: It cannot be cut so, the profile does not cover the size, or there are fewer layers.
        """
        num_sharing = num_pipelines if self.profile.sharing else 1  # without a price they are the same for all
        size = self.microbatch_size(num_microbatches)

        def make() -> StageCosts:
            return costs_of_stages(*cut_profile(self.profile, self.partition, size, num_stages), size, num_sharing)

        return _made(self.made.costs, (size, num_stages, num_sharing), make, 256)

    def lists(self, setting: Setting) -> Schedule:
        """Return the lists of one pipeline of a setting, lowered; those of the others are the same.

        Raises:
            ScheduleError: The schedule cannot have these counts.
        """
        return _one_pipeline(_alike(setting), len(self.cluster.devices))

    def pipelines(self, setting: Setting, costs: StageCosts) -> EqualPipelines:
        """Return the pipelines of a setting, of which one stands for any number.

        Raises:
            ScheduleError, SimulationError: The lists cannot run.
        """

        def make() -> EqualPipelines:
            return EqualPipelines(self.lists(setting), costs, self.cluster, self.network)

        key = _alike(setting), id(costs)  # which the pipelines keep, and so its identity
        return _made(self.made.pipelines, key, make, 8)

    def microbatch_size(self, num_microbatches: int) -> int:
        """Return the samples of each, if a batch is cut into so many.

        Raises:
            ProfileError: It cannot be cut so.
        """
        size, left = divmod(self.batch_size, num_microbatches)
        if left:
            raise ProfileError(
                f"got a batch of {self.batch_size} samples in {num_microbatches} micro-batches, expected equal ones"
            )
        return size


def _made(store: dict[Hashable, MadeT], key: Hashable, make: Callable[[], MadeT], most: int) -> MadeT:
    """Return what was made under a key, made now if it was not, of so many at most that are kept."""
    if key not in store:
        if len(store) == most:
            del store[next(iter(store))]
        store[key] = make()
    return store[key]


def _alike(setting: Setting) -> Setting:
    """Return one that has the same lists in each of its pipelines: there are two, if there can be several."""
    return setting if setting.advance is None else replace(setting, num_pipelines=2)


@lru_cache(maxsize=8)
def _one_pipeline(setting: Setting, num_devices: int) -> Schedule:
    """Return the lists, lowered. No message comes from R, so it may as well be put in when they are."""
    if setting.recomputes:
        return recompute(_one_pipeline(replace(setting, recomputes=False), num_devices))
    return lower(setting.build_one(num_devices))
