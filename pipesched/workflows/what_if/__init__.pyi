from .machine_change import MachineChange as MachineChange
from .run_change import counts_of_run as counts_of_run
from .run_change import name_of_run as name_of_run
from .run_change import what_if as what_if
from .what_if_result import WhatIf as WhatIf
