from .insertion import lower as lower
from .insertion import require_lowerable as require_lowerable
from .streamed_insertion import lowered_ranks as lowered_ranks
from .torch_insertion import lower_for_torch as lower_for_torch
