"""From a model, machines, a batch and a memory limit to ranked plans."""

from simulator.planner.candidate import Candidate
from simulator.planner.evaluate import predict
from simulator.planner.outcome import Costs, Outcome
from simulator.planner.plan_of import plan_of
from simulator.planner.reasons import reasons
from simulator.planner.request import Request
from simulator.planner.search import Found, Progress, search

__all__ = ["Candidate", "Costs", "Found", "Outcome", "Progress", "Request", "plan_of", "predict", "reasons", "search"]
