"""Launching starts the processes of a run, connects their ranks, watches and ends them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
