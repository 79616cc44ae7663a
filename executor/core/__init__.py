"""A rank executes its op list: the interpreter, the stages, and the versions of their weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
