"""Which setting to train with: a search, AvgPipe's predictor, its guidelines."""

from pipesched.simulator.tuner.evaluate import Problem, evaluate
from pipesched.simulator.tuner.outcome import Evaluator, Outcome, ranked
from pipesched.simulator.tuner.predictor import Accounting, SettingProfile, predict, profile_setting
from pipesched.simulator.tuner.search import search
from pipesched.simulator.tuner.setting import Setting, Space

__all__ = [
    "Accounting",
    "Evaluator",
    "Outcome",
    "Problem",
    "Setting",
    "SettingProfile",
    "Space",
    "evaluate",
    "predict",
    "profile_setting",
    "ranked",
    "search",
]
