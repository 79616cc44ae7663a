from .pipeline_setting import PipelineSetting as PipelineSetting
from .setting_export import TrainerRule as TrainerRule
from .setting_export import export_setting as export_setting
