from .annotation import annotate as annotate
from .clock_alignment import ClockAlignment as ClockAlignment
from .clock_alignment import MessageTimes as MessageTimes
from .clock_alignment import align_clocks as align_clocks
from .imported_timeline import ImportedTimeline as ImportedTimeline
from .trace_import import read_traces as read_traces
