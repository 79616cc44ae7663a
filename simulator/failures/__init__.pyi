from .checkpointed_training import CheckpointedTraining as CheckpointedTraining
from .interval_search import IntervalGoodput as IntervalGoodput
from .interval_search import interval_goodputs as interval_goodputs
from .interval_search import search_interval as search_interval
