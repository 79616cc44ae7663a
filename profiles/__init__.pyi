from . import clusters as clusters
from . import costs as costs
from . import io as io
from . import measuring as measuring
from . import models as models
from . import partitioning as partitioning
from . import processes as processes
from .errors import ProfileError as ProfileError
