from .all_reduce import make_reduce_groups as make_reduce_groups
from .boundary_shapes import emulated_shapes as emulated_shapes
from .boundary_shapes import find_shapes as find_shapes
from .gloo import ProcessGroupTransport as ProcessGroupTransport
from .gloo import TensorShape as TensorShape
from .gloo import make_groups as make_groups
from .in_process import LocalTransport as LocalTransport
from .in_process import Mailroom as Mailroom
