"""The work of the commands, without a terminal: the functions behind `import pipesched`, and their results."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
