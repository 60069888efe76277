"""What an engine's many errors mean to a user: another rank is gone, or never came."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from facetrain.distributed.communicator import PeerLostError
from facetrain.distributed.world import World
from facetrain.errors import FacetrainError

_MOST_OF_A_CAUSE = 160


@contextlib.contextmanager
def peers_alive(timeout_s: float | None) -> Iterator[None]:
    """Say what any error in a collective means, but for memory: another rank is gone.

    Args:
        timeout_s: longest wait; None where it is not known.
    """
    waited = "" if timeout_s is None else f", or waited more than {timeout_s:g} s for it"
    try:
        yield
    except (torch.OutOfMemoryError, PeerLostError):
        raise
    except RuntimeError as error:
        raise PeerLostError(
            f"lost contact with another process{waited}; look for that process's own message, then "
            f"go on from the last checkpoint with --resume ({_cause(error)})"
        ) from error


@contextlib.contextmanager
def meeting(world: World, timeout_s: float) -> Iterator[None]:
    """Say why this rank could not join the others."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise PeerLostError(
            f"process {world.rank} could not meet all {world.world_size} processes within "
            f"{timeout_s:g} s; look for the message of one that did not start, and check that all "
            f"can reach each other ({_cause(error)})"
        ) from error
    except ValueError as error:
        raise FacetrainError(
            f"process {world.rank} of {world.world_size} is not told where to meet the others "
            f"({_cause(error)}); start with torchrun or with --num-processes"
        ) from error


def _cause(error: Exception) -> str:
    """The engine's own words, without its trace."""
    lines = str(error).strip().splitlines()
    return lines[0][:_MOST_OF_A_CAUSE] if lines else type(error).__name__
