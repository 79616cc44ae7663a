from .partitioning import PartitionedModel as PartitionedModel
from .partitioning import PartitionRequest as PartitionRequest
from .partitioning import partition as partition
from .planning import PlanSearch as PlanSearch
from .planning import plan as plan
from .planning import plannable_schedules as plannable_schedules
from .planning import search_request as search_request
from .planning import untried_schedules as untried_schedules
