from .run_change import as_in_run as as_in_run
from .run_change import recompute_when_of as recompute_when_of
from .run_change import what_if as what_if
from .what_if_result import WhatIf as WhatIf
