"""What a caller may give for a schedule, costs, machines and a model, and how it is read."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
