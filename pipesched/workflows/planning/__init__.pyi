from .partitioning import PartitionedModel as PartitionedModel
from .partitioning import PartitionRequest as PartitionRequest
from .partitioning import partition as partition
from .plan_result import PlanSearch as PlanSearch
from .planning import plan as plan
from .planning import require_planning as require_planning
