"""Makes a draft for a target, in steps that leave plain files and can be killed.

Prompts → the target's answers → a student of few layers → training → n-grams of the answers →
report → a folder that transformers loads.
"""

from specray.distill.pipeline import Pipeline
from specray.distill.settings import STEPS, DistillSettings

__all__ = ["STEPS", "DistillSettings", "Pipeline"]
