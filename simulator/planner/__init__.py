"""From a model, machines, a batch and a memory limit to ranked plans."""

from pipesched.simulator.planner.candidate import Candidate
from pipesched.simulator.planner.evaluate import predict
from pipesched.simulator.planner.outcome import Costs, Outcome
from pipesched.simulator.planner.plan_of import plan_of
from pipesched.simulator.planner.reasons import reasons
from pipesched.simulator.planner.request import Request
from pipesched.simulator.planner.search import Found, Progress, search

__all__ = ["Candidate", "Costs", "Found", "Outcome", "Progress", "Request", "plan_of", "predict", "reasons", "search"]
