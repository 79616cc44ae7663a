"""Pipeline-parallel schedules, simulated and executed: what the command line does, as functions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
