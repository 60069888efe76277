"""The classification layer, cut over the ranks by class."""

from facetrain.classifier.margin_softmax import SoftmaxGradients, margin_softmax
from facetrain.classifier.sharded_classifier import ShardedClassifier

__all__ = ["ShardedClassifier", "SoftmaxGradients", "margin_softmax"]
