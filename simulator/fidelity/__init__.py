"""The fidelity of predictions: their error split into costs, hand-over and the rest."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
