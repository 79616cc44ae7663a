"""The memory that devices need over a timeline, in bytes and in micro-batches."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
