"""Pipeline-parallel schedules, simulated and executed: what the command line does, as functions.

The folders `schedules`, `profiles`, `simulator` and `executor` are imported through here and under no other name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
