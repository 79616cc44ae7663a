"""The fidelity of predictions: their error split into the parts of costs, of hand-over, and of what is left."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
