"""The parts of training besides the op lists: samples, losses, checkpoints, when to run ahead."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
