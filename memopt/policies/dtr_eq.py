"""DTR's h_eq: the same score over classes of evicted values (ICLR 2021).

    h = (c + cost of the distinct evicted classes beside it) / (m * s)

Cheap to keep (union-find), and what DTR's prototype in PyTorch uses.
"""

from __future__ import annotations

from memopt.policies.dtr import Dtr
from memopt.policies.neighbourhood import ClassNeighbourhood
from memopt.policies.state import State


def dtr_eq(state: State) -> Dtr:
    """DTR with the neighbourhood by union-find."""
    return Dtr(state, ClassNeighbourhood(state))
