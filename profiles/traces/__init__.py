"""Traces of real runs, of PyTorch's profiler or of pipesched, read as Timelines on one clock."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
