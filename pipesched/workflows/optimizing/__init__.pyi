from .optimizing import optimize as optimize
from .optimum_result import Optimum as Optimum
from .optimum_result import OrderedSchedule as OrderedSchedule
