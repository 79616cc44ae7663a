"""Analysis of a timeline in numbers: makespan, bubbles, idle causes, critical path, differences."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
