"""The search on a Ray cluster, for more settings than one machine has cores for (the extra ``ray``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipesched.simulator import SimulationError
from pipesched.simulator.tuner.outcome import SettingOutcome
from pipesched.simulator.tuner.search import Judge, Runner, evaluate_all, in_chunks
from pipesched.simulator.tuner.setting import Setting

if TYPE_CHECKING:
    from types import ModuleType


def on_ray(address: str) -> Runner:
    """Return what lets a judge go through settings on a cluster, a few at a time, wherever there is room.

    Args:
        address: As `ray.init` takes it: ``auto``, ``host:port``, ``ray://host:port``; ``local`` starts one here.

    Raises:
        SimulationError: Ray is not installed.
    """
    ray = _ray()

    def run(judge: Judge, settings: Sequence[Setting]) -> Iterator[SettingOutcome]:
        logging.getLogger("ray").setLevel(logging.ERROR)  # of its start it tells at every start
        ray.init(address=address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            task, handed = ray.remote(evaluate_all), ray.put(judge)
            left: list[Any] = [task.remote(handed, chunk) for chunk in in_chunks(settings)]
            while left:
                done, left = ray.wait(left)
                for each in ray.get(done):
                    yield from each
        finally:
            ray.shutdown()

    return run


def _ray() -> ModuleType:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise SimulationError("Ray is not installed; try pip install 'pipesched[ray]'") from error
