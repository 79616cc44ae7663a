from .forecasts import make_outlooks as make_outlooks
from .forecasts import training_bounds as training_bounds
from .planned_run import planned_run as planned_run
from .planned_run import planned_training as planned_training
