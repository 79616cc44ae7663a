from .pipeline_setting import PipelineSetting as PipelineSetting
from .setting_export import export_setting as export_setting
from .trainer_rule import TrainerRule as TrainerRule
