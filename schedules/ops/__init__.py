"""The ops, the instructions for a rank of a pipeline, and their rules."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
