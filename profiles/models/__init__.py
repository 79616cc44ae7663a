"""Models as lists of layers: the reference models, and the user's own; each file loads torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
