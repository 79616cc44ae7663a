from .partitioning import PartitionedModel as PartitionedModel
from .partitioning import PartitionRequest as PartitionRequest
from .partitioning import number_ranges as number_ranges
from .partitioning import partition as partition
from .planning import PlanSearch as PlanSearch
from .planning import plan as plan
from .planning import require_planning as require_planning
from .planning import untried_schedules as untried_schedules
