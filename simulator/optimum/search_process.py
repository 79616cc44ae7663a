"""A process that serves search requests of `OrderSearcher` from stdin, and reports progress on stdout."""

from __future__ import annotations

import json
import sys
import threading
from importlib import import_module

from pydantic import TypeAdapter

from pipesched.profiles.processes import end_with
from pipesched.simulator.optimum.op_times import OpTimes, objective_ticks
from pipesched.simulator.optimum.order_model import OrderRequest, search_order


def main() -> None:
    """Search until nothing is asked any more."""
    end_with(int(sys.argv[1]))
    requests, telling = TypeAdapter(OrderRequest), threading.Lock()
    import_module("ortools.sat.python.cp_model")  # before the time of the first search begins

    def tell(ticks: int, bound: int, starts: OpTimes | None, *, is_over: bool = False) -> None:
        with telling:  # solvers call from threads of their own
            sys.stdout.write(json.dumps([ticks, bound, starts, is_over]) + "\n")
            sys.stdout.flush()

    for line in sys.stdin.buffer:
        request = requests.validate_json(line)
        starts, bound = search_order(request, tell)
        tell(objective_ticks(request.problem, starts), bound, starts, is_over=True)


if __name__ == "__main__":
    main()
