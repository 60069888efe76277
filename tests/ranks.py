"""Runs a function on several real ranks, each in its own process, joined by gloo.

Processes come from a fork server that has torch imported, so that a test of 3 ranks takes well
under a second.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch

from facetrain.distributed import World, connect

_CONTEXT = multiprocessing.get_context("forkserver")
# The tests' imports, and those that torch does at the first backward and optimizer step.
_CONTEXT.set_forkserver_preload(
    ["pytest", "torch._dynamo", "torch.distributed", "facetrain.classifier"]
)


def run_ranks(
    function: Callable[..., Any], world_size: int, *arguments: Any, timeout_s: float = 60.0
) -> list[Any]:
    """Results of `function(communicator, *arguments)` on each rank, in rank order.

    An exception of a rank is returned in place of its result, so that a test can look at it.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = [_CONTEXT.Pipe(duplex=False) for _ in range(world_size)]
        processes = [
            _CONTEXT.Process(
                target=_rank,
                args=(function, rank, world_size, f"file://{folder}/meet", sender, arguments),
            )
            for rank, (_, sender) in enumerate(results)
        ]
        for process in processes:
            process.start()
        try:
            collected = []
            for rank, (receiver, _) in enumerate(results):
                if not receiver.poll(timeout_s):
                    raise TimeoutError(f"rank {rank} of {world_size} gave no result")
                collected.append(pickle.loads(receiver.recv_bytes()))
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
    rank: int,
    world_size: int,
    init_method: str,
    sender: Any,
    arguments: tuple[Any, ...],
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    result: Any
    try:
        communicator = connect(
            World(rank, world_size, rank, init_method, launched=True),
            torch.device("cpu"),
            "torch",
            timeout_s=30.0,
        )
        result = function(communicator, *arguments)
        # Plain pickle: multiprocessing's own would pass tensors by file descriptors that die here.
        sender.send_bytes(pickle.dumps(result))
        communicator.close()
    except Exception as error:
        error.args = (*error.args, traceback.format_exc())
        sender.send_bytes(pickle.dumps(error))
