"""Ops and spans as columns of numbers, and the loops over them, plain or as machine code."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
