"""Which setting to train with: a search, AvgPipe's predictor, its guidelines."""

from simulator.tuner.evaluate import Problem, evaluate
from simulator.tuner.outcome import Evaluator, Outcome, ranked
from simulator.tuner.predictor import Accounting, SettingProfile, predict, profile_setting
from simulator.tuner.search import search
from simulator.tuner.setting import Setting, Space

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
