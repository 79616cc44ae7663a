"""Uses of a Timeline of a simulation, a run or an imported trace: drawing, comparison, explanation, replay."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
