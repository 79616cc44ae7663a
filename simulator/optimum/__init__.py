"""The optimum: the order of a schedule's ops that takes the least time under a memory limit, and a proven bound."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
