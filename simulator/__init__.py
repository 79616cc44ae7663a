"""The simulator predicts runs of op lists, and computes numbers and pictures from their Timelines."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
