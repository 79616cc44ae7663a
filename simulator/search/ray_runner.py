"""Run an evaluator over candidates on a Ray cluster, where one machine has too few cores (the extra ``ray``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipesched.simulator import SimulationError
from pipesched.simulator.search.runners import Runner, evaluate_all, split_into_chunks
from pipesched.simulator.search.search_candidate import CandidateT
from pipesched.simulator.search.search_outcome import OutcomeT

if TYPE_CHECKING:
    from types import ModuleType


def make_ray_runner(address: str) -> Runner:
    """Return what lets a judge go through candidates on a cluster, a few at a time, wherever there is room.

    Args:
        address: Address as `ray.init` takes it: ``auto``, ``host:port``, ``ray://host:port``; ``local`` starts a
            cluster here.

    Raises:
        SimulationError: Ray is not installed.
    """
    ray = _ray()

    def run(judge: Callable[[CandidateT], OutcomeT], candidates: Sequence[CandidateT]) -> Iterator[OutcomeT]:
        logging.getLogger("ray").setLevel(logging.ERROR)  # of its start it tells at every start
        ray.init(address=address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            task, handed = ray.remote(evaluate_all), ray.put(judge)
            left: list[Any] = [task.remote(handed, chunk) for chunk in split_into_chunks(candidates)]
            while left:
                done, left = ray.wait(left)
                for outcomes in ray.get(done):
                    yield from outcomes
        finally:
            ray.shutdown()

    return run


def _ray() -> ModuleType:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise SimulationError("Ray is not installed; try pip install 'pipesched[ray]'") from error
