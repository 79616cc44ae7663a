"""The simulator predicts what op lists would do, and reads numbers and pictures off their timelines."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
