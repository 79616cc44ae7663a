"""What would happen: op lists under SimPy, and what a Timeline tells, predicted or measured."""

from simulator.compare import Comparison, compare
from simulator.critical_path import critical_path
from simulator.errors import SimulationError
from simulator.frame import to_frame, write_frame
from simulator.gantt import draw_gantt, text_gantt
from simulator.in_flight import InFlight, in_flight, peak_in_flight
from simulator.memory import memory, over_capacity, peak_memory
from simulator.metrics import DeviceMetrics, Metrics, metrics
from simulator.simulate import simulate
from simulator.summary import Summary, summarize
from simulator.trace import to_trace
from simulator.traffic_rules import TrafficRules

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
