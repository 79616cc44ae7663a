"""What would happen: op lists under SimPy, and what a Timeline tells, predicted or measured."""

from pipesched.simulator.compare import Comparison, compare
from pipesched.simulator.critical_path import critical_path
from pipesched.simulator.errors import SimulationError
from pipesched.simulator.frame import to_frame, write_frame
from pipesched.simulator.gantt import draw_gantt, text_gantt
from pipesched.simulator.in_flight import InFlight, in_flight, peak_in_flight
from pipesched.simulator.memory import memory, over_capacity, peak_memory
from pipesched.simulator.metrics import DeviceMetrics, Metrics, metrics
from pipesched.simulator.simulate import simulate
from pipesched.simulator.summary import Summary, summarize
from pipesched.simulator.trace import to_trace
from pipesched.simulator.traffic_rules import TrafficRules

__all__ = [
    "Comparison",
    "DeviceMetrics",
    "InFlight",
    "Metrics",
    "SimulationError",
    "Summary",
    "TrafficRules",
    "compare",
    "critical_path",
    "draw_gantt",
    "in_flight",
    "memory",
    "metrics",
    "over_capacity",
    "peak_in_flight",
    "peak_memory",
    "simulate",
    "summarize",
    "text_gantt",
    "to_frame",
    "to_trace",
    "write_frame",
]
