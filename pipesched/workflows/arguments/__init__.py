"""Reading and checking of the arguments of callers: schedules, costs, machines and models."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
