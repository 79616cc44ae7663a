"""Findings on op lists: whether they can run, and which versions of the weights they read."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
