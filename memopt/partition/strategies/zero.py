"""P2: batch cut, and weights with what belongs to them cut over the same devices (ZeRO).

Stage 1 cuts the optimizer's state, stages 2 and 3 also gradients and weights. Gathered weights are
remade by communication: stage 2 keeps them from the forward to the backward pass, stage 3 gathers
them again, and a planner weighs that against keeping or recomputing activations, layer by layer.
Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020;
stages 2 and 3 as torch.distributed.fsdp.fully_shard runs them.
"""

from __future__ import annotations

from dataclasses import replace

from memopt.partition.chain import Option
from memopt.partition.layers import ALL_KEPT, Layer, Way
from memopt.partition.strategies.replicated import replicated
from memopt.partition.strategies.setting import Setting, compute_us


def zero1(layer: Layer, way: Way, setting: Setting) -> Option | None:
    """As `replicated`, but each device steps its part of the weights and sends it to all."""
    if not layer.weight_bytes:
        return replace(replicated(layer, way, setting), strategy="zero1")
    plain, weight_bytes = replicated(layer, way, setting), layer.weight_bytes
    share = setting.everyone.num_ranks
    stepped = setting.collectives.broadcast(weight_bytes, setting.everyone)
    return replace(
        plain,
        strategy="zero1",
        time_us=plain.time_us
        - setting.optimizer_us(weight_bytes)
        + setting.optimizer_us(weight_bytes / share)
        + stepped.us,
        resting_bytes=round(weight_bytes * (1 + setting.state_ratio / share)),
        traffic=(*plain.traffic, stepped),
    )


def zero2(layer: Layer, way: Way, setting: Setting) -> Option:
    """Weights gathered once and kept for the backward pass; gradients reduce-scattered."""
    return _sharded(layer, way, setting, keeps=True)


def zero3(layer: Layer, way: Way, setting: Setting) -> Option:
    """Weights gathered before each pass; gradients reduce-scattered."""
    return _sharded(layer, way, setting, keeps=False)


def _sharded(layer: Layer, way: Way, setting: Setting, *, keeps: bool) -> Option:
    weight_bytes, share = layer.weight_bytes, setting.everyone.num_ranks
    gathered = setting.collectives.all_gather(weight_bytes, setting.everyone)
    scattered = setting.collectives.reduce_scatter(weight_bytes, setting.everyone)
    traffic = (gathered, scattered) if keeps else (gathered, gathered, scattered)
    kept_bytes = layer.input_bytes + way.kept_bytes + keeps * weight_bytes
    return Option(
        "zero2" if keeps else "zero3",
        way.name,
        compute_us(layer, way)
        + setting.exposed_us(*traffic)
        + setting.optimizer_us(weight_bytes / share),
        resting_bytes=round(weight_bytes * (1 + setting.state_ratio) / share),
        kept_bytes=kept_bytes,
        work_bytes=layer.input_bytes + way.work_bytes + weight_bytes,
        gradient_bytes=round(weight_bytes / share),
        traffic=traffic,
        # Saved tensors of gathered weights come and go with them: not under a plan's hooks yet.
        is_executable=way.name == ALL_KEPT,
    )
