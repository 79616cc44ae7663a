from .elastic_averager import ElasticAverager as ElasticAverager
from .elastic_averager import SharedPool as SharedPool
from .elastic_averager import average_locally as average_locally
from .elastic_averager import shared_bytes as shared_bytes
from .reference_memory import Averaged as Averaged
from .reference_memory import averaged as averaged
