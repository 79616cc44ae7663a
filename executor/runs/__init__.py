"""Runs measure a schedule or train with it, on one process or on one per rank."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
