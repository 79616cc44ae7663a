"""Schedules: the op lists of every rank, and their properties that need no run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
