"""Machines: devices, the links between them, and the time of an all-reduce."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
