"""One rank of a run: ``torchrun --nproc-per-node 2 -m pipesched.executor job.json --out measured.json``.

``pipesched run --job job.json`` writes the job; ``pipesched run`` alone starts the processes itself. The work of a rank
is in `rank_command`, which takes seconds to load.
"""

from __future__ import annotations

import os

from pipesched.profiles.processes import end_with

if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:  # `is_under_agent` would load torch first
        end_with(os.getppid())
    from pipesched.executor.rank_command import run_and_leave

    run_and_leave()
else:  # a launcher's processes are forked from one that has loaded it
    from pipesched.executor.rank_command import main as main
