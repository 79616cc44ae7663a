from .link_profiler import main as main
from .profiler import profile_model as profile_model
from .provenance import device_name as device_name
from .provenance import library_versions as library_versions
from .split_backward import Rest as Rest
from .split_backward import run_input_pass as run_input_pass
from .split_backward import run_weight_pass as run_weight_pass
from .weight_costs import adams_direction as adams_direction
