"""The classification layer, cut over the ranks by class."""

from facetrain.classifier.center_optimizer import CenterAdamW, CenterOptimizer, CenterSGD
from facetrain.classifier.schedule import SCHEDULES, ScheduleWish
from facetrain.classifier.sharded_classifier import ShardedClassifier

__all__ = [
    "SCHEDULES",
    "CenterAdamW",
    "CenterOptimizer",
    "CenterSGD",
    "ScheduleWish",
    "ShardedClassifier",
]
