"""Processes beside this one: how they are started and ended, and what the machine is called."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
