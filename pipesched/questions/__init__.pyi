from .optimizing import OptimizeSettings as OptimizeSettings
from .setup import CostSettings as CostSettings
from .setup import InputShare as InputShare
from .setup import Jitter as Jitter
from .setup import JitterSeed as JitterSeed
from .setup import PredictionSettings as PredictionSettings
from .simulating import RunCount as RunCount
from .simulating import SimulateSettings as SimulateSettings
