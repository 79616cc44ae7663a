"""The settings of each question that a command and a function of the library answer, each declared once."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
