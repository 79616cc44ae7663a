"""What is done with a Timeline of a simulation, of a run or of others' traces: drawn, compared, explained, replayed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
