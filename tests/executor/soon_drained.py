"""A rank under torchrun, as ``python -m pipesched.executor``, of a run that is drained as soon as it is to leave."""

import runpy

from pipesched.executor.launch import early_drain

early_drain.GRACE_S = 0.0
runpy.run_module("pipesched.executor", run_name="__main__", alter_sys=True)
