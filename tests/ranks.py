"""Runs a function on several real ranks, each in its own process, joined by an engine.

Processes come from a fork server that has torch imported, so that a test of 3 ranks takes well
under a second.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

from facetrain.distributed import World, connect

_CONTEXT = multiprocessing.get_context("forkserver")
# The tests' imports, and those that torch does at the first backward and optimizer step.
_CONTEXT.set_forkserver_preload(
    ["pytest", "torch._dynamo", "torch.distributed", "facetrain.classifier", "horovod.torch"]
)

needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="Horovod is not installed: facetrain horovod build",
)
ENGINES = ["torch", pytest.param("horovod", marks=needs_horovod)]
"""For tests that run on each engine: `@pytest.mark.parametrize("engine", ENGINES)`."""


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    timeout_s: float = 60.0,
    engine: str = "torch",
    collective_timeout_s: float = 30.0,
) -> list[Any]:
    """Results of `function(communicator, *arguments)` on each rank, in rank order.

    An exception of a rank is returned in place of its result, so that a test can look at it; an
    EOFError stands for a rank that died.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = [_CONTEXT.Pipe(duplex=False) for _ in range(world_size)]
        worlds = [
            World(rank, world_size, rank, f"file://{folder}/meet", True, world_size)
            for rank in range(world_size)
        ]
        processes = [
            _CONTEXT.Process(
                target=_rank,
                args=(function, world, engine, collective_timeout_s, sender, arguments),
            )
            for world, (_, sender) in zip(worlds, results, strict=True)
        ]
        for process, (_, sender) in zip(processes, results, strict=True):
            process.start()
            sender.close()  # else a rank that dies would look like one that is busy
        try:
            collected = []
            for rank, (receiver, _) in enumerate(results):
                if not receiver.poll(timeout_s):
                    raise TimeoutError(f"rank {rank} of {world_size} gave no result")
                try:
                    collected.append(pickle.loads(receiver.recv_bytes()))
                except EOFError:
                    collected.append(
                        EOFError(f"rank {rank} of {world_size} ended without a result")
                    )
            return collected
        finally:
            for process in processes:
                process.join(5)
                process.kill()
                process.join()
            for ends in results:
                for end in ends:
                    end.close()


def raise_first(results: list[Any]) -> list[Any]:
    """The results, unless one is an exception."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _rank(
    function: Callable[..., Any],
    world: World,
    engine: str,
    timeout_s: float,
    sender: Any,
    arguments: tuple[Any, ...],
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    result: Any
    try:
        communicator = connect(world, torch.device("cpu"), engine, timeout_s)
        result = function(communicator, *arguments)
        # Plain pickle: multiprocessing's own would pass tensors by file descriptors that die here.
        sender.send_bytes(pickle.dumps(result))
        communicator.close()
    except Exception as error:
        error.args = (*error.args, traceback.format_exc())
        sender.send_bytes(pickle.dumps(error))
