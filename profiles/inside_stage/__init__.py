"""The costs inside a stage of a transformer: operators, collectives and memory of one GPU, without a measurement."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
