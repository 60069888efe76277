"""P3, P4 and both: weights cut inside a node, all devices of it work on all its rows.

With g devices a node, each works on g times the rows with 1/g of the features: as much arithmetic,
1/g of the weights, as much of what lies inside a layer, but g times an input that all of them need.
BatchNorm is to be computed on each device's own rows among the node's (ghost batches), which keeps
it exact. Modelled for comparison; no trainer here runs it.
Shoeybi et al., "Megatron-LM", 2019.
"""

from __future__ import annotations

from dataclasses import replace

from memopt.partition.chain import Conversion, Option
from memopt.partition.collectives import Traffic
from memopt.partition.layers import Layer, Way
from memopt.partition.strategies.replicated import replicated
from memopt.partition.strategies.setting import Setting


def tensor(layer: Layer, way: Way, setting: Setting) -> Option | None:
    """Columns first, rows last: outputs are summed in the node, and so are input gradients."""
    share = setting.node.num_ranks
    sums = (
        setting.collectives.all_reduce(share * layer.output_bytes, setting.node),
        setting.collectives.all_reduce(share * layer.input_bytes, setting.node),
    )
    return _cut(
        layer, way, setting, "tensor", "node", "node", sums,
        more_kept_bytes=(share - 1) * layer.input_bytes,
        more_work_bytes=(share - 1) * (layer.input_bytes + layer.output_bytes),
    )  # fmt: skip


def row(layer: Layer, way: Way, setting: Setting) -> Option | None:
    """P3: partial outputs of all the node's rows, summed and handed out by rows."""
    share = setting.node.num_ranks
    sums = (
        setting.collectives.reduce_scatter(share * layer.output_bytes, setting.node),
        setting.collectives.all_gather(share * layer.output_bytes, setting.node),
    )
    return _cut(
        layer, way, setting, "row", "features", "batch", sums,
        more_kept_bytes=0,
        more_work_bytes=(share - 1) * layer.output_bytes,
    )  # fmt: skip


def column(layer: Layer, way: Way, setting: Setting) -> Option | None:
    """P4: every device needs the whole input, and has partial input gradients to sum."""
    share = setting.node.num_ranks
    sums = (setting.collectives.all_reduce(share * layer.input_bytes, setting.node),)
    return _cut(
        layer, way, setting, "column", "node", "features", sums,
        more_kept_bytes=(share - 1) * layer.input_bytes,
        more_work_bytes=(share - 1) * layer.input_bytes,
    )  # fmt: skip


def _cut(
    layer: Layer,
    way: Way,
    setting: Setting,
    name: str,
    takes: str,
    gives: str,
    sums: tuple[Traffic, ...],
    *,
    more_kept_bytes: int,
    more_work_bytes: int,
) -> Option | None:
    share = setting.node.num_ranks
    if share == 1 or not layer.weight_bytes:
        return None
    cut = replace(layer, weight_bytes=layer.weight_bytes // share)
    plain = replicated(cut, way, setting)
    gradients = setting.summed(cut.weight_bytes, setting.across_nodes)
    return replace(
        plain,
        strategy=name,
        time_us=plain.time_us
        - setting.exposed_us(*plain.traffic)
        + setting.exposed_us(gradients)
        + sum(item.us for item in sums),
        kept_bytes=plain.kept_bytes + more_kept_bytes,
        work_bytes=plain.work_bytes + more_work_bytes,
        traffic=(gradients, *sums),
        takes=takes,
        gives=gives,
        is_executable=False,
    )


def convert(output_bytes: int, gives: str, takes: str, setting: Setting) -> Conversion | None:
    """Handing on an activation of which a device has `output_bytes` when it has its own rows.

    From rows to a node's rows it is gathered, and its gradient, equal on all, is cut; the reverse
    the other way round; between rows and features it is exchanged, both ways.
    """
    if gives == takes:
        return Conversion()
    share = setting.node.num_ranks
    if {gives, takes} == {"batch", "features"}:
        exchanged = setting.collectives.all_to_all(share * output_bytes, setting.node)
        return Conversion(2 * exchanged.us, output_bytes, (exchanged, exchanged))
    gathered = setting.collectives.all_gather(share * output_bytes, setting.node)
    return Conversion(gathered.us, share * output_bytes, (gathered,))
