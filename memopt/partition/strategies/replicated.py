"""P1: data parallelism. Every device has all weights; gradients are all-reduced."""

from __future__ import annotations

from memopt.partition.chain import Option
from memopt.partition.layers import Layer, Way
from memopt.partition.strategies.setting import Setting, compute_us


def replicated(layer: Layer, way: Way, setting: Setting) -> Option:
    """Weights W: W and their state resting, W of gradients, one all-reduce of W."""
    weight_bytes = layer.weight_bytes
    gradients = setting.summed(weight_bytes)
    return Option(
        "replicated",
        way.name,
        compute_us(layer, way) + setting.exposed_us(gradients) + setting.optimizer_us(weight_bytes),
        resting_bytes=round(weight_bytes * (1 + setting.state_ratio)),
        kept_bytes=layer.input_bytes + way.kept_bytes,
        work_bytes=layer.input_bytes + way.work_bytes,
        gradient_bytes=weight_bytes,
        traffic=(gradients,),
    )
