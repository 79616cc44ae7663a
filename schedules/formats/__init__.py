"""Files that people exchange: PyTorch's schedule CSV, schedules and timelines as JSON."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
