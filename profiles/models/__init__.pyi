from .model import Model as Model
from .model import build_layers as build_layers
from .model import draw_batch as draw_batch
from .model import draw_held_out as draw_held_out
from .optimizers import OPTIMIZERS as OPTIMIZERS
from .optimizers import make_optimizer as make_optimizer
from .resolve import resolve_model as resolve_model
from .tied import require_untied as require_untied
