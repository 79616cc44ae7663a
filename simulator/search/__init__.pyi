from .batch_sizes import covered_sizes as covered_sizes
from .batch_sizes import divisors as divisors
from .outcome import UNPREDICTABLE as UNPREDICTABLE
from .outcome import SearchOutcome as SearchOutcome
from .outcome import least as least
from .outcome import over_memory_reason as over_memory_reason
