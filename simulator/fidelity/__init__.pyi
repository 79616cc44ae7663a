from .error_split import ErrorSplit as ErrorSplit
from .error_split import SplitError as SplitError
from .error_split import split_error as split_error
from .makespan_range import MakespanRange as MakespanRange
from .makespan_range import MedianInterval as MedianInterval
from .makespan_range import makespan_range as makespan_range
from .makespan_range import median_interval as median_interval
from .timeline_seconds import NetworkModel as NetworkModel
