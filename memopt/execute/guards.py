"""What replays in training run under, and what saved tensors are held to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from memopt.errors import MemoptError


@contextmanager
def below_autograd() -> Iterator[None]:
    """Operators run as they were recorded: below autograd, and with no autocast."""
    enabled = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    for kind in enabled:
        torch.set_autocast_enabled(kind, False)
    try:
        with torch._C._AutoDispatchBelowAutograd():
            yield
    finally:
        for kind in enabled:
            torch.set_autocast_enabled(kind, True)


def check_version(tensor: Tensor, version: int) -> None:
    """Raises a MemoptError if a saved tensor was written to since it had that version."""
    # Autograd itself does not look, once there are hooks.
    if tensor._version != version:
        raise MemoptError(
            f"a tensor of shape {tuple(tensor.shape)} that backward needs was changed in place "
            "after it was saved; training without a budget fails too: clone it first"
        )
