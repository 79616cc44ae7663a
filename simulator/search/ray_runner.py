"""Let a judge go through items on a Ray cluster, where one machine has too few cores (the extra ``ray``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipesched.simulator import SimulationError
from pipesched.simulator.search.runners import AnswerT, ItemT, Runner, Take, evaluate_all

if TYPE_CHECKING:
    from types import ModuleType


def make_ray_runner(address: str) -> Runner:
    """Return what lets a judge go through items on a cluster, one on each of its cores at a time.

    Args:
        address: Address as `ray.init` takes it: ``auto``, ``host:port``, ``ray://host:port``; ``local`` starts a
            cluster here.

    Raises:
        SimulationError: Ray is not installed.
    """
    ray = _ray()

    def run(judge: Callable[[ItemT], AnswerT], take: Take[ItemT]) -> Iterator[AnswerT]:
        logging.getLogger("ray").setLevel(logging.ERROR)  # of its start it tells at every start
        ray.init(address=address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            task, handed = ray.remote(evaluate_all), ray.put(judge)
            room, running = max(1, int(ray.cluster_resources().get("CPU", 1))), list[Any]()
            while True:
                while len(running) < room and (items := take()):
                    running.append(task.remote(handed, items))
                if not running:
                    return
                done, running = ray.wait(running)
                for answers in ray.get(done):
                    yield from answers
        finally:
            ray.shutdown()

    return run


def _ray() -> ModuleType:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise SimulationError('Ray is not installed; try pip install "pipesched[ray]"') from error
