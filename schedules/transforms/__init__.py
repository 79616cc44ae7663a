"""Transforms make op lists from op lists: recomputation, replicas, delayed reductions, runs of many steps."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
