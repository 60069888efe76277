"""Trains a model under an online policy: `Online` makes its passes and keeps what they learn."""

from __future__ import annotations

import weakref

from memopt.execute.online_memory import OnlineMemory, Totals
from memopt.execute.online_nodes import NodeBytes
from memopt.execute.online_pass import KnownOperators, OnlinePass
from memopt.policies import find_policy

#: Operators and nodes with other shapes or constants in each step are not all kept in mind.
_MOST_KNOWN = 20_000


class Online:
    """Passes of one model under one policy.

    Args:
        policy: see `memopt.policies.POLICIES`.
        budget_bytes: above the resting state; where it cannot be held a pass goes over it rather
            than fail.

    Attributes:
        totals: what they took so far, by how much over the budget included.

    Raises:
        MemoptError: an unknown policy.
    """

    def __init__(self, policy: str, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.totals = Totals()
        self._policy = find_policy(policy)
        self._operators: KnownOperators = {}
        self._node_bytes: NodeBytes = {}
        self._memory: weakref.ref[OnlineMemory] | None = None

    def new_pass(self, held_bytes: int = 0) -> OnlinePass:
        """Hooks for the next forward pass, which shares the budget with those still alive.

        Args:
            held_bytes: in use already, such as gradients of passes before.
        """
        for known in (self._operators, self._node_bytes):
            if len(known) > _MOST_KNOWN:
                known.clear()
        memory = None if self._memory is None else self._memory()
        if memory is None or not memory.is_in_use:
            memory = OnlineMemory(self.budget_bytes, held_bytes, self.totals)
            self._memory = weakref.ref(memory)
        return OnlinePass(memory, self._policy, self._operators, self._node_bytes)
