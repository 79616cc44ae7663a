"""The output of the commands: what people see on a terminal, and the files that they ask for."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
