"""Records an iteration that does not run: `record_fake(build)`, under fake tensors.

Fake tensors have shapes and no memory, so any batch size can be recorded on any machine in well
under a second a thousand operators. Times come from a `CostTable`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from memopt.capture.costs import CostTable
from memopt.capture.operators import tensors
from memopt.capture.recorder import Recorder
from memopt.capture.recording import Recording
from memopt.errors import MemoptError

Step = Callable[[], object]


def record_fake(
    build: Callable[[], tuple[Step, Iterable[nn.Module | Tensor]]],
    *,
    costs: CostTable | None = None,
    calls: bool = False,
) -> Recording:
    """Records the step that `build` makes, without running it.

    Args:
        build: makes models (`fake_copy(model)`, or new ones) and batches of any size, and gives the
            step and what is resting, as for `record`. Tensors made in it are fake, on any
            device whose backend is there.
        costs: gives operators their times, running those it does not know yet; None: all 0.
        calls: as for `record`.

    Returns:
        As `record`, `program_last_use` included.

    Raises:
        MemoptError: as `record`; and sizes that depend on values, operators without a fake
            implementation, real tensors mixed in, a device that is not there.
    """
    recorder = Recorder(copy_saved=True, is_fake=True)
    try:
        with FakeTensorMode(), _LikeReal():
            step, resting = build()
            with recorder.recording():
                names = recorder.name_resting(resting)
                returned = step()
                recorder.close()
        del returned
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise MemoptError(
            f"operator {error.func} gives a size or number that depends on values, which fake "
            "tensors do not have: record a real step instead, or keep it out of the step"
        ) from error
    except UnsupportedOperatorException as error:
        raise MemoptError(
            f"operator {error.func} has no fake implementation: register one "
            "(torch.library.register_fake), or record a real step instead"
        ) from error
    except AssertionError as error:
        if "Please convert all Tensors to FakeTensors" not in str(error):
            raise
        raise MemoptError(
            "the fake step uses a real tensor: make models and batches inside `build`, with "
            f"fake_copy(model) for one that exists ({str(error).splitlines()[0][-120:]})"
        ) from error
    costs_us = [0.0] * len(recorder.calls)
    if costs is not None:
        costs_us = [costs.cost_us(call) for call in recorder.calls]
    return recorder.result(names, keep_calls=calls, costs_us=costs_us)


def fake_copy(model: nn.Module, device: torch.device | str | None = None) -> nn.Module:
    """A copy of `model` whose tensors are fake; call it in the `build` of `record_fake`.

    Tensors that modules hold as plain attributes are copied too.

    Args:
        model: stays as it is.
        device: of the copy; None for that of each tensor.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        held = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
        for tensor in held:
            if isinstance(tensor, Tensor) and id(tensor) not in memo:
                memo[id(tensor)] = fake_like(tensor, device)
    return copy.deepcopy(model, memo)


def fake_like(tensor: Tensor, device: torch.device | str | None = None) -> Tensor:
    """A fake tensor, or parameter, of the same shape, strides, type and need of a gradient."""
    fake = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device or tensor.device
    )
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad)


class _LikeReal(TorchDispatchMode):
    """What fake kernels get wrong.

    Autograd ends the process when it meets a device whose backend is not there. BatchNorm of a
    half-precision input with fp32 weights saves fp32 statistics, its fake kernel half ones.
    """

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.native_batch_norm.default and args[1] is not None:
            output, mean, invstd = result
            if mean.dtype != args[1].dtype and mean.numel():
                result = output, mean.to(args[1].dtype), invstd.to(args[1].dtype)
        for tensor in tensors(result):
            kind = tensor.device.type
            if kind not in ("cpu", "meta") and not torch.get_device_module(kind).is_available():
                raise MemoptError(
                    f"device {tensor.device} is not on this machine, and autograd needs its "
                    "backend even under fake tensors: record for cpu here, or record there"
                )
        return result
