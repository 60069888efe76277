"""When storages end, exactly and without polling: each carries a small object whose end is its own.

As in memopt/live_bytes.py. A copy of a storage, made so that the program's own references can be
told from those that autograd holds, carries the number of what it copies.
"""

from __future__ import annotations

import torch

_ATTRIBUTE = "_memopt_life"


class Lifetimes:
    """Numbers storages and notes after which operator each ends.

    Attributes:
        now: number of the last operator that ran; -1 before the first.
        last_use: by storage; the latest end so far of it and its copies.
        program_last_use: by storage, its copies left out; None while it lives.
        num_alive: by storage, it and its copies.
    """

    def __init__(self) -> None:
        self.now = -1
        self.last_use: list[int] = []
        self.program_last_use: list[int | None] = []
        self.num_alive: list[int] = []
        self.is_open = True

    def number(self, storage: torch.UntypedStorage) -> int | None:
        """Number of a storage; None for one not seen before."""
        life = getattr(storage, _ATTRIBUTE, None)
        return life.number if life is not None and life.lifetimes is self else None

    def begin(self, storage: torch.UntypedStorage, *, resting: bool) -> int:
        """Numbers a new storage; ends of resting ones are noted too."""
        number = len(self.num_alive)
        self.last_use.append(self.now)
        self.program_last_use.append(None)
        self.num_alive.append(1)
        setattr(storage, _ATTRIBUTE, _Life(self, number, is_copy=False))
        return number

    def begin_copy(self, storage: torch.UntypedStorage, number: int) -> None:
        """Gives a storage the number of the one it copies."""
        self.num_alive[number] += 1
        setattr(storage, _ATTRIBUTE, _Life(self, number, is_copy=True))

    def end(self, life: _Life) -> None:
        """Called as a storage ends."""
        if not self.is_open:
            return
        self.num_alive[life.number] -= 1
        self.last_use[life.number] = self.now
        if not life.is_copy:
            self.program_last_use[life.number] = self.now


class _Life:
    """Lives as long as the storage it is an attribute of."""

    __slots__ = ("is_copy", "lifetimes", "number")

    def __init__(self, lifetimes: Lifetimes, number: int, *, is_copy: bool) -> None:
        self.lifetimes = lifetimes
        self.number = number
        self.is_copy = is_copy

    def __del__(self) -> None:
        self.lifetimes.end(self)
