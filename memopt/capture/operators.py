"""What an operator does beyond giving results: what it writes to, whether it may run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memopt.graph import Replay

# Operators that write to running statistics although their schemas do not say so. In training
# their results do not depend on what these held before; a replay passes None for them.
_WRITES_RUNNING_STATISTICS = frozenset(
    {
        "aten::native_batch_norm",
        "aten::cudnn_batch_norm",
        "aten::miopen_batch_norm",
        "aten::batch_norm_gather_stats",
        "aten::batch_norm_gather_stats_with_counts",
        "aten::batch_norm_update_stats",
    }
)
# Whatever fills their result may be out of sight: a kernel of Triton's, NumPy. None of it may run
# again without that.
_GIVES_UNWRITTEN_MEMORY = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)
_RUNNING_STATISTICS = ("running_mean", "running_var")
# Their result's size depends on values only if an index is a mask.
_SIZED_BY_MASKS = ("aten::index.Tensor", "aten::_unsafe_index.Tensor")
_NUMBERS = frozenset({int, float, bool})


class _Argument(NamedTuple):
    position: int
    name: str


class Facts(NamedTuple):
    """What a schema and its tags say, and what they leave out.

    Attributes:
        name: such as aten::add.Tensor.
        writes: arguments written to, by the schema.
        statistics: arguments written to in training, not by the schema.
        training: flag that turns `statistics` on, where the operator has one.
        dropout: probability that makes the operator random, where it has one.
        replay: before its arguments are known.
    """

    name: str
    writes: tuple[_Argument, ...]
    statistics: tuple[_Argument, ...]
    training: _Argument | None
    dropout: _Argument | None
    replay: Replay


@cache
def facts(function: torch._ops.OpOverload) -> Facts:
    """Facts of an operator, worked out once."""
    schema = function._schema
    arguments = [_Argument(i, argument.name) for i, argument in enumerate(schema.arguments)]
    named = {argument.name: argument for argument in arguments}
    writes = tuple(
        here
        for here, argument in zip(arguments, schema.arguments, strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    lies = schema.name in _WRITES_RUNNING_STATISTICS
    statistics = tuple(named[name] for name in _RUNNING_STATISTICS if lies and name in named)
    replay = Replay.PURE
    if torch.Tag.nondeterministic_seeded in function.tags:
        replay = Replay.RANDOM
    # Others communicate, or are custom: nothing says that they give the same twice. A result whose
    # size depends on values cannot be planned for.
    if (
        function.namespace not in ("aten", "prims")
        or schema.name in _GIVES_UNWRITTEN_MEMORY
        or torch.Tag.data_dependent_output in function.tags
        or torch.Tag.dynamic_output_shape in function.tags
    ):
        replay = Replay.NEVER
    return Facts(
        function.name(),
        writes,
        statistics,
        named.get("training"),
        named.get("dropout_p"),
        replay,
    )


def written(known: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Tensors that this call writes to."""
    for argument in known.writes:
        yield from tensors(_given(argument, args, kwargs))
    yield from updated_statistics(known, args, kwargs)


def updated_statistics(
    known: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Tensor]:
    """Running statistics that this call updates without saying so."""
    if known.statistics and (known.training is None or _given(known.training, args, kwargs)):
        for argument in known.statistics:
            yield from tensors(_given(argument, args, kwargs))


def replay_of(known: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Replay:
    """Whether this call may run again, as far as the operator goes."""
    if known.replay is Replay.RANDOM and known.dropout is not None:
        return Replay.RANDOM if _given(known.dropout, args, kwargs) else Replay.PURE
    if known.name in _SIZED_BY_MASKS and not any(
        index.dtype in (torch.bool, torch.uint8) for index in tensors(args[1])
    ):
        return Replay.PURE
    return known.replay


def tensors(tree: Any) -> Iterator[Tensor]:
    """Tensors in arguments or results of an operator."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors(item)
    elif isinstance(tree, dict):
        yield from tensors(list(tree.values()))


def with_views(tree: Any, view: Callable[[Tensor], Any]) -> Any:
    """The same containers, lists as tuples, with `view(tensor)` for each tensor."""
    if tree is None or type(tree) in _NUMBERS:
        return tree  # most of them, so first
    if isinstance(tree, Tensor):
        return view(tree)
    if isinstance(tree, (tuple, list)):
        return tuple([with_views(item, view) for item in tree])
    return tree


def _given(argument: _Argument, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if argument.position < len(args):
        return args[argument.position]
    return kwargs.get(argument.name)
