"""Watches the nodes of backward, so that an online pass knows its memory there too.

No dispatch mode can be on in a user's own `backward()`. But each node has hooks before and after
it: before, its gradients are counted, what it saved is made again, and room is made for what it
will take; after, its results are counted. What a node takes while it runs is measured once, the
first time that one of its kind and shapes runs, by a counting mode between its two hooks.
Gradients that meet are taken to need memory for their sum.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves

from memopt.execute.online_memory import OnlineMemory
from memopt.live_bytes import LiveBytes

#: Bytes that nodes take beyond what is there, by kind and shapes.
NodeBytes = dict[Any, int]

#: Number of a node, and of one of its gradients.
_Edge = tuple[int, int]

# Their derivatives take another formula under a dispatch mode, so they are never measured.
_NOT_MEASURED = (
    "ProdBackward",
    "CumprodBackward",
    "LinalgDetBackward",
    "LinalgSlogdetBackward",
    "LinalgHouseholderProductBackward",
    "MaxBackward1",
    "MinBackward1",
    "MedianBackward0",
    "NanmedianBackward0",
)


class Saver(Protocol):
    """A pass, as the nodes that it made see it."""

    def before_node(self, node: int) -> None:
        """What the node saved is there, and stays."""

    def after_node(self) -> None:
        """It may go."""


def watch(
    outputs: Any, first_node: int, saver: Saver, memory: OnlineMemory, node_bytes: NodeBytes
) -> None:
    """Hooks all nodes from outputs of a forward pass down to where it began.

    Args:
        first_node: sequence number of the first node that may be the pass's.
        node_bytes: what is known of nodes; more is added.
    """
    nodes = list(_nodes(outputs, first_node))
    num_producers = Counter(edge for node in nodes for edge in node.next_functions)
    arrived: set[_Edge] = set()
    numbers = {node: number for number, node in enumerate(nodes)}
    for node, number in numbers.items():
        # Gradients that meet are added up between two nodes.
        meets = {
            place: (numbers[edge[0]], edge[1])
            for place, edge in enumerate(node.next_functions)
            if num_producers[edge] > 1 and edge[0] in numbers
        }
        watched = _Watched(node, number, saver, memory, node_bytes, meets, arrived)
        node.register_prehook(watched.before)
        node.register_hook(watched.after)


class _Watched:
    """Hooks of one node; they keep its pass's memory alive, and not the pass."""

    def __init__(
        self,
        node: Node,
        number: int,
        saver: Saver,
        memory: OnlineMemory,
        node_bytes: NodeBytes,
        meets: dict[int, _Edge],
        arrived: set[_Edge],
    ) -> None:
        self._edges = [(number, index) for index in range(len(node._input_metadata))]
        self._meets = meets
        self._arrived = arrived
        self._sequence_number = node._sequence_nr()
        self._saver = weakref.ref(saver)
        self._memory = memory
        self._node_bytes = node_bytes
        results = [
            next_node._input_metadata[index]
            for next_node, index in node.next_functions
            if next_node is not None
        ]
        gradients = node._input_metadata
        shapes = [(one.dtype, *one.shape) for one in (*gradients, *results)]
        self._key = (node.name(), tuple(shapes))
        sizes = [one.dtype.itemsize * math.prod(one.shape) for one in results]
        self._guess = sum(sizes) + max(sizes, default=0)  # its results and one of them again
        self._is_measured = not node.name().startswith(_NOT_MEASURED)
        self._bytes_before = 0
        self._mode: LiveBytes | None = None

    def before(self, gradients: tuple[Tensor | None, ...]) -> None:
        memory = self._memory
        self._arrived.difference_update(self._edges)
        memory.count(gradients)
        known = self._node_bytes.get(self._key)
        needed_bytes = self._guess if known is None else known
        if (saver := self._saver()) is not None:
            saver.before_node(self._sequence_number)
        memory.make_room(needed_bytes)
        if known is not None:
            memory.note_peak(known)
        elif self._is_measured:
            self._bytes_before = memory.live_bytes
            # Not by `with`: if the node fails, autograd takes the mode off, and nothing else is on.
            self._mode = memory.measuring = LiveBytes()
            _push_mode(self._mode)

    def after(self, results: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]) -> None:
        memory = self._memory
        if self._mode is not None:
            _pop_mode()
            self._node_bytes[self._key] = self._mode.peak_bytes
            memory.note_peak(self._bytes_before + self._mode.peak_bytes - memory.live_bytes)
            self._mode = memory.measuring = None
        memory.count(results)
        if (saver := self._saver()) is not None:
            saver.after_node()
        for place, edge in self._meets.items():
            result = results[place]
            if edge in self._arrived and result is not None:
                memory.make_room(result.nbytes)
            self._arrived.add(edge)


def _nodes(outputs: Any, first: int) -> Iterator[Node]:
    seen: set[Node] = set()
    open_nodes = [
        leaf.grad_fn
        for leaf in tree_leaves(outputs)
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None
    ]
    while open_nodes:
        node = open_nodes.pop()
        if node in seen or node._sequence_nr() < first:
            continue
        # These outlive the pass if others hold them, and run for weights only.
        if node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        yield node
        open_nodes += [next_node for next_node, _ in node.next_functions if next_node is not None]


def next_node_number() -> int:
    """Sequence number that the next node of this thread gets."""
    return int(torch._C._autograd._get_sequence_nr())
