"""The abstract machine: which op waits for which, whatever the ops take."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
