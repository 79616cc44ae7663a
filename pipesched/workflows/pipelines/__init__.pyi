from .pipeline import Pipeline as Pipeline
