"""The fit of an estimated profile to one known run: one factor on the seconds of the layers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pipesched.profiles.costs import LEAST_FIT, MOST_FIT, Profile, with_fit_factor
from pipesched.simulator.analysis import readable_s
from pipesched.workflows import ArgumentError
from pipesched.workflows.arguments import ScheduleSource
from pipesched.workflows.simulating.prediction import predict_source
from pipesched.workflows.simulating.setup import Setup


@dataclass(frozen=True, slots=True)
class IterationFit:
    """A factor on the seconds of the layers, from one known run.

    Attributes:
        factor: Seconds of every layer over their estimate.
        iteration_s: Known seconds of an iteration.
        estimated_s: Predicted seconds of the iteration without a factor.
    """

    factor: float
    iteration_s: float
    estimated_s: float

    @property
    def sentence(self) -> str:
        """The factor, its run, and the option that gives the factor to other settings."""
        return (
            f"factor {self.factor:.5g} from one known run of {readable_s(self.iteration_s)}, estimated at "
            f"{readable_s(self.estimated_s)}; for other settings use --fit-factor {self.factor:.5g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def fitted_to_iteration(source: ScheduleSource, setup: Setup, iteration_s: float) -> tuple[Setup, IterationFit]:
    """Return the setup whose prediction takes the known seconds of an iteration, and the fit.

    The factor scales the seconds of all layers with their collectives and their step. Messages between stages, and
    other work of the ranks, do not scale. The cut into stages is the cut by the estimate without a factor.

    Args:
        source: The schedule of the run.
        setup: The setup of the run, with an estimated profile.
        iteration_s: Seconds of an iteration of the run.

    Raises:
        ArgumentError: The costs are no estimate, the setup has jitter, or no factor gives these seconds.
        NotRunnableError, ScheduleError, ProfileError, SimulationError: As of a prediction.
    """
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # it has no types

    profile = setup.loaded_costs
    if not isinstance(profile, Profile) or profile.provenance.sharding is None:
        raise ArgumentError(
            "fit_iteration_s: got costs that are not an estimate, expected the estimated profile of a model on a GPU; "
            "try llama3-70b with `gpu=h100`"
        )
    if setup.jitter:
        raise ArgumentError("fit_iteration_s: got `jitter` too, expected only one of them; leave one out")

    cut = replace(setup, costs=with_fit_factor(profile, 1.0)).cut(source)

    def fitted(factor: float) -> Setup:
        return replace(cut, costs=with_fit_factor(profile, factor))

    def seconds(factor: float) -> float:
        return predict_source(source, fitted(factor)).makespan_s

    least_s, most_s = seconds(LEAST_FIT), seconds(MOST_FIT)
    if not least_s <= iteration_s <= most_s:
        raise ArgumentError(
            f"fit_iteration_s: got {readable_s(iteration_s)}, expected {readable_s(least_s)} to {readable_s(most_s)}, "
            f"the times of this setting with factors of {LEAST_FIT:g} to {MOST_FIT:g} on its layers; check the seconds "
            "and the setting"
        )
    factor = float(brentq(lambda factor: seconds(factor) - iteration_s, LEAST_FIT, MOST_FIT, xtol=1e-12))
    return fitted(factor), IterationFit(factor, iteration_s, seconds(1.0))
