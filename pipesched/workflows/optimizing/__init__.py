"""The optimum: the fastest order of a schedule's ops under a memory limit, with a proven bound."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
