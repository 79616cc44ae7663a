from .error_split import ErrorSplit as ErrorSplit
from .error_split import SplitError as SplitError
from .error_split import split_error as split_error
from .makespan_range import MakespanRange as MakespanRange
from .makespan_range import makespan_range as makespan_range
from .median_interval import MedianInterval as MedianInterval
from .median_interval import median_interval as median_interval
from .network_model import NetworkModel as NetworkModel
