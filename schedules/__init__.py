"""Schedules: the op lists of every rank, and what can be said of them without running them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
