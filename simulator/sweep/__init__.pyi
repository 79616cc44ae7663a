from .swept_setting import COLUMN_HEADINGS as COLUMN_HEADINGS
from .swept_setting import SETTING_COLUMNS as SETTING_COLUMNS
from .swept_setting import SweptOutcome as SweptOutcome
from .swept_setting import SweptSetting as SweptSetting
from .swept_setting import best_first as best_first
from .swept_setting import measured_columns as measured_columns
from .swept_setting import pareto_front as pareto_front
