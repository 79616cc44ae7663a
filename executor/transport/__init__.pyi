from .all_reduce import make_reduce_groups as make_reduce_groups
from .boundary_shapes import emulated_shapes as emulated_shapes
from .boundary_shapes import find_shapes as find_shapes
from .in_process import LocalTransport as LocalTransport
from .in_process import Mailroom as Mailroom
from .process_group import ProcessGroupTransport as ProcessGroupTransport
from .process_group import TensorShape as TensorShape
from .process_group import make_groups as make_groups
