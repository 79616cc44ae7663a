from .distribution import Distribution as Distribution
from .distribution import distribution as distribution
from .distribution import makespans as makespans
from .network import require_matching as require_matching
from .preconditions import require_simulable as require_simulable
from .simulation import simulate as simulate
