"""Trainings under random failures: their remaining useful time, by the interval of checkpoints."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
