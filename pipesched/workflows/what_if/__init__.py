"""Predicted effects of a change of machines or schedule on a measured run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
