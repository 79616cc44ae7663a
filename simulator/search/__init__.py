"""The common parts of every search of the best way to train: settings, outcomes, runners, journals, bounds, races."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
