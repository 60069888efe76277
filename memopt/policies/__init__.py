"""Online policies: what to evict when a block does not fit, decided as the iteration runs."""

from __future__ import annotations

from collections.abc import Callable

from memopt.errors import MemoptError
from memopt.policies.coop import Coop
from memopt.policies.dte import Dte
from memopt.policies.dtr import Dtr
from memopt.policies.dtr_eq import dtr_eq
from memopt.policies.state import Policy, State

__all__ = ["POLICIES", "Policy", "State", "find_policy"]

POLICIES: dict[str, Callable[[State], Policy]] = {
    "dtr": Dtr,
    "dtr_eq": dtr_eq,
    "dte": Dte,
    "coop": Coop,
}


def find_policy(name: str) -> Callable[[State], Policy]:
    """The policy of that name.

    Raises:
        MemoptError: there is none.
    """
    if name not in POLICIES:
        raise MemoptError(f"policy {name!r} is not known; known: {', '.join(POLICIES)}")
    return POLICIES[name]
