"""What operators cost on this machine, measured once each on real tensors: `CostTable`.

    table = CostTable(Path("costs.json"))
    recording = record_fake(build, costs=table)  # times what it has not met yet
    table.save()

The file is one JSON object: {"format": "memopt-costs", "version": 1, "us": {environment: {call:
microseconds}}}. An environment is the torch version, the device and the number of threads, so a
file taken elsewhere does no harm.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from memopt.capture.operators import facts
from memopt.capture.recording import Call, TensorView, describe, views
from memopt.errors import MemoptError
from memopt.graph import Replay

_FORMAT, _VERSION = "memopt-costs", 1
_ENOUGH_SECONDS = 0.1
_NUM_MIXED = 2**16


class CostTable:
    """Microseconds of operators by name, shapes, strides, types and constants.

    Operators that may not be run for their time (collectives, custom ones) and those that only
    make views cost 0.

    Args:
        path: read if it is there, and written by `save`; None keeps the table in memory.
        num_runs: the median of so many runs counts, after one that does not; fewer when they take
            over a tenth of a second together.

    Raises:
        MemoptError: the file is not a cost table.
    """

    def __init__(self, path: Path | None = None, *, num_runs: int = 3) -> None:
        self._path = path
        self._num_runs = num_runs
        self._us: dict[str, dict[str, float]] = {}
        if path is not None and path.exists():
            self._us = _read(path)

    def __len__(self) -> int:
        return sum(map(len, self._us.values()))

    def cost_us(self, call: Call) -> float:
        """Time of a call, measured now if it is new."""
        known = facts(call.function)
        inputs, results = list(views((call.args, call.kwargs))), list(views(call.results))
        if (
            known.replay is Replay.NEVER
            or any(view.value is None for view in inputs)
            or (results and {view.value for view in results} <= {view.value for view in inputs})
        ):
            return 0.0
        device = next((view.device for view in [*inputs, *results]), torch.device("cpu"))
        key = f"{known.name}{describe((call.args, call.kwargs), with_offsets=False)}"
        return self.time_us(
            key,
            device,
            lambda: (call.function, real_arguments(call.args), real_arguments(call.kwargs)),
        )

    def time_us(
        self,
        key: str,
        device: torch.device,
        prepare: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]],
    ) -> float:
        """Time of anything on a device, measured now if its key is new.

        Args:
            prepare: gives a function with its arguments, of which only the call is timed.
        """
        times = self._us.setdefault(_environment(device), {})
        if key not in times:
            times[key] = self._measure_us(*prepare(), device)
        return times[key]

    def save(self) -> None:
        """Writes the table to its path, whole or not at all."""
        if self._path is None:
            raise MemoptError("this cost table has no path to be saved at: give CostTable one")
        content = {"format": _FORMAT, "version": _VERSION, "us": self._us}
        half_written = self._path.with_name(self._path.name + ".part")
        half_written.write_text(json.dumps(content, indent=0), encoding="utf-8")
        half_written.replace(self._path)

    def _measure_us(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: torch.device,
    ) -> float:
        cuda_devices = [device] if device.type == "cuda" else []
        runs_us: list[float] = []
        start = time.perf_counter()
        with torch.no_grad(), torch.random.fork_rng(cuda_devices):
            function(*args, **kwargs)
            while len(runs_us) < self._num_runs:
                _wait_for(device)
                before = time.perf_counter_ns()
                function(*args, **kwargs)
                _wait_for(device)
                runs_us.append((time.perf_counter_ns() - before) / 1000)
                if time.perf_counter() - start > _ENOUGH_SECONDS:
                    break
        return statistics.median(runs_us)


def real_arguments(tree: Any) -> Any:
    """Arguments with tensors that are there: of mixed signs, and zeros where they may be indices.

    With one sign alone a processor guesses all branches right: PReLU's backward is then 5 times
    faster than on activations.
    """
    if isinstance(tree, TensorView):
        num_elements = 1 + sum(
            (size - 1) * stride for size, stride in zip(tree.shape, tree.stride, strict=True)
        )
        memory = torch.zeros(max(num_elements, 0), dtype=tree.dtype, device=tree.device)
        if tree.dtype.is_floating_point and tree.dtype.itemsize > 1:  # none of 8 bits
            _mix_signs(memory)
        return memory.as_strided(tree.shape, tree.stride)
    if isinstance(tree, tuple):
        return tuple(real_arguments(item) for item in tree)
    if isinstance(tree, dict):
        return {key: real_arguments(item) for key, item in tree.items()}
    return tree


def _mix_signs(memory: torch.Tensor) -> None:
    """Fills it with numbers from -1 to 1 in no order; long ones with the same again and again."""
    generator = torch.Generator(memory.device).manual_seed(0)
    block = memory[:_NUM_MIXED].uniform_(-1.0, 1.0, generator=generator)
    for start in range(len(block), len(memory), _NUM_MIXED):
        part = memory[start : start + _NUM_MIXED]
        part.copy_(block[: len(part)])


def _environment(device: torch.device) -> str:
    if device.type == "cuda":
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"torch {torch.__version__}, {device.type} {platform.machine()}, {threads} thread(s)"


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["version"]) == (_FORMAT, _VERSION):
            return {
                environment: {call: float(us) for call, us in times.items()}
                for environment, times in content["us"].items()
            }
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise MemoptError(
        f"{path} is not a cost table of version {_VERSION}: name another path, or delete it to "
        "measure anew"
    )
