from .optimizing import optimize as optimize
from .optimizing import optimize_source as optimize_source
from .optimum_result import Optimum as Optimum
from .optimum_result import OrderedSchedule as OrderedSchedule
