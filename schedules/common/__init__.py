"""Helpers of all packages: limits, settings, counts, quoted values and free memory."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
