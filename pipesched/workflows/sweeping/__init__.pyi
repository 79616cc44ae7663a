from .setting_condition import SettingCondition as SettingCondition
from .sweep_judge import SweepJudge as SweepJudge
from .sweep_result import SweepResult as SweepResult
from .sweep_space import SweepSpace as SweepSpace
from .sweeping import sweep as sweep
