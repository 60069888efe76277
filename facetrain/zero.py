"""The backbone's weights, gradients and optimizer state over the ranks: `--zero-stage`.

    stage   weights of a rank           gradients        optimizer state   sent, of S bytes a rank
    0       all                         all              all               2 S   all-reduce
    1       all                         all              whole tensors     3 S   and broadcast
    2       a slice between steps       a slice          a slice           2 S   gather, scatter
    3       a slice; a block's while    a slice          a slice           3 S   one gather more
            it runs, all of it

Times (P - 1) / P of P ranks. Stages 1 to 3 are torch's ZeroRedundancyOptimizer and fully_shard,
with each segment of the backbone as one group. Every stage computes the same step: gradients are
sums over the ranks, and a checkpoint holds whole tensors that any stage on any world size reads.

Rajbhandari et al., SC 2020: ZeRO.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from facetrain.backbones import Backbone
from facetrain.config import OptimConfig
from facetrain.distributed import Communicator
from facetrain.distributed.gradients import GradientSum
from facetrain.distributed.peers import peers_alive
from facetrain.errors import FacetrainError
from facetrain.optim import (
    build_optimizer,
    optimizer_kind,
    optimizer_state,
    restore_optimizer_state,
    set_lr,
)

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

STAGES = (0, 1, 2, 3)


class BackboneUpdate(Protocol):
    """What becomes of a step's gradients, and where the backbone's weights are between steps.

    Besides the backbone's parameters the optimizer has the margin's, which are small and equal on
    every rank.
    """

    needs_every_rank: bool
    """A rank without rows has to run the backbone's pass all the same."""

    def describe(self) -> str | None:
        """One line for a log; None where there is nothing to say."""

    def set_lr(self, lr: float) -> None: ...

    def zero_grad(self) -> None: ...

    def passes(self, *, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of a micro-batch; sums gradients over the ranks.

        Args:
            last: no more micro-batches follow in this step.
        """

    def clip(self, max_norm: float) -> float:
        """Scale the backbone's gradients to at most this L2 norm; the norm before."""

    def step(self) -> None: ...

    def weights(self, *, wanted: bool) -> dict[str, Tensor]:
        """The backbone's whole state dict; every rank calls it.

        Args:
            wanted: otherwise this rank only takes part, and gets nothing.
        """

    def load_weights(self, state: Mapping[str, Tensor]) -> None: ...

    def optimizer_state(self, *, wanted: bool) -> dict[str, Tensor]:
        """Whole tensors, keyed "parameter/slot"; every rank calls it. `wanted` as in `weights`."""

    def restore_optimizer_state(self, state: Mapping[str, Tensor]) -> None: ...

    def whole_backbone(self) -> Backbone:
        """A backbone with all weights in plain tensors, to evaluate and save; every rank calls it.

        Training does not go on afterwards.
        """


def check_zero_stage(config: OptimConfig, backbone: Backbone, communicator: Communicator) -> None:
    """Whether this world can shard the backbone so.

    Raises:
        FacetrainError: it cannot; on every rank, as all are given the same.
    """
    stage = config.zero_stage
    names = [segment.name for segment in backbone.segments()]
    if unknown := [name for name in config.zero_keeps if name not in names]:
        raise FacetrainError(
            f"--zero-keeps {unknown[0]}: no block of this backbone; it has {', '.join(names)}"
        )
    if stage and communicator.world_size > 1 and not dist.is_initialized():
        raise FacetrainError(
            f"--zero-stage {stage}: shards by torch.distributed; use --engine torch, or "
            "--zero-stage 0"
        )


def backbone_update(
    config: OptimConfig, backbone: Backbone, margin: nn.Module, communicator: Communicator
) -> BackboneUpdate:
    """The update that `config.zero_stage` asks for; one process has nothing to shard.

    From stage 2 on the backbone's parameters are sharded in place.

    Raises:
        FacetrainError: see `check_zero_stage`.
    """
    check_zero_stage(config, backbone, communicator)
    if config.zero_stage == 0 or communicator.world_size == 1:
        return Replicated(config, backbone, margin, communicator)
    if config.zero_stage == 1:
        return ShardedOptimizer(config, backbone, margin, communicator)
    return ShardedWeights(config, backbone, margin, communicator)


def _margin_parameters(margin: nn.Module) -> dict[str, nn.Parameter]:
    # A margin's own parameters get whole gradients from the head: they are not summed again.
    return {f"margin.{name}": parameter for name, parameter in margin.named_parameters()}


class Replicated:
    """Stage 0: every rank has everything, and gradients are all-reduced during backward."""

    needs_every_rank = False

    def __init__(
        self,
        config: OptimConfig,
        backbone: Backbone,
        margin: nn.Module,
        communicator: Communicator,
    ) -> None:
        self._backbone = backbone
        trained = {n: p for n, p in backbone.named_parameters() if p.requires_grad}
        self._own = list(trained.values())
        self._trained = {**trained, **_margin_parameters(margin)}
        self._communicator = communicator
        self._gradient_sum = GradientSum(self._own, communicator)
        self._optimizer = self._build_optimizer(config)

    def _build_optimizer(self, config: OptimConfig) -> torch.optim.Optimizer:
        return build_optimizer(list(self._trained.values()), config)

    def describe(self) -> str | None:
        return None

    def set_lr(self, lr: float) -> None:
        set_lr(self._optimizer, lr)

    def zero_grad(self) -> None:
        for parameter in self._trained.values():
            parameter.grad = None

    def passes(self, *, last: bool) -> AbstractContextManager[object]:
        return self._gradient_sum if last else nullcontext()

    def clip(self, max_norm: float) -> float:
        return nn.utils.clip_grad_norm_(self._own, max_norm).item()

    def step(self) -> None:
        self._optimizer.step()

    def weights(self, *, wanted: bool) -> dict[str, Tensor]:
        return self._backbone.state_dict() if wanted else {}

    def load_weights(self, state: Mapping[str, Tensor]) -> None:
        self._backbone.load_state_dict(state)

    def optimizer_state(self, *, wanted: bool) -> dict[str, Tensor]:
        return optimizer_state(self._optimizer, self._trained) if wanted else {}

    def restore_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        restore_optimizer_state(self._optimizer, self._trained, state)

    def whole_backbone(self) -> Backbone:
        return self._backbone


class ShardedOptimizer(Replicated):
    """Stage 1: each parameter's optimizer state is on one rank, which steps it and sends it out.

    Parameters are not cut: the rank of the largest one has at least its state.
    """

    def _build_optimizer(self, config: OptimConfig) -> torch.optim.Optimizer:
        with warnings.catch_warnings():
            # The package compiles other optimizers by torch.jit as it is imported.
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import ZeroRedundancyOptimizer
        parameters = list(self._trained.values())
        kind, settings = optimizer_kind(config)
        self._sharded = ZeroRedundancyOptimizer(parameters, kind, **settings)
        return self._sharded.optim

    def describe(self) -> str | None:
        return f"optimizer state of the backbone over {self._communicator.world_size} processes"

    def set_lr(self, lr: float) -> None:
        set_lr(self._sharded, lr)

    def step(self) -> None:
        self._sharded.step()

    def optimizer_state(self, *, wanted: bool) -> dict[str, Tensor]:
        communicator = self._communicator
        own = optimizer_state(self._optimizer, self._trained)
        kinds = {key: (value.shape, value.dtype) for key, value in own.items()}
        whole = {}
        for source, listed in enumerate(communicator.all_gather_object(kinds)):
            for key, (shape, dtype) in listed.items():
                if source == communicator.rank:
                    value = own[key].contiguous()
                else:
                    value = torch.empty(shape, dtype=dtype, device=communicator.device)
                communicator.broadcast(value, source)
                if wanted:
                    whole[key] = value
        return whole

    def restore_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        held = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        own = {name: p for name, p in self._trained.items() if id(p) in held}
        mine = {key: value for key, value in state.items() if key.rpartition("/")[0] in own}
        restore_optimizer_state(self._optimizer, own, mine)


class ShardedWeights:
    """Stages 2 and 3: each rank keeps a slice of every tensor, by torch's fully_shard.

    A segment's weights are gathered before it runs. They stay until its backward pass is over
    (stage 2, and segments named in `zero_keeps`), or are gathered once more for it (stage 3). The
    optimizer works on this rank's slices as plain tensors, for torch's fused SGD takes no others;
    all optimizers here treat each element alone.
    """

    needs_every_rank = True

    def __init__(
        self,
        config: OptimConfig,
        backbone: Backbone,
        margin: nn.Module,
        communicator: Communicator,
    ) -> None:
        self._backbone = backbone
        self._communicator = communicator
        self._pattern = _without_values(backbone)
        self._config = config
        # fully_shard takes contiguous tensors only; activations stay channels_last.
        backbone.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        _shard(config, backbone, communicator)
        self._sharded: dict[str, DTensor] = {
            name: parameter  # type: ignore[misc]
            for name, parameter in backbone.named_parameters()
            if parameter.requires_grad
        }
        slices = {
            name: nn.Parameter(cast("DTensor", parameter.detach()).to_local())
            for name, parameter in self._sharded.items()
        }
        self._slices = list(slices.values())
        self._trained = {**slices, **_margin_parameters(margin)}
        self._optimizer = build_optimizer(list(self._trained.values()), config)

    def describe(self) -> str | None:
        what = "weights, gradients and optimizer state of the backbone over "
        what += f"{self._communicator.world_size} processes"
        if self._config.zero_stage == 2:
            return f"{what}, weights whole from forward to backward"
        kept = len(self._config.zero_keeps)
        return f"{what}, weights gathered again for backward" + (
            f" but for {kept} of the blocks" if kept else ""
        )

    def set_lr(self, lr: float) -> None:
        set_lr(self._optimizer, lr)

    def zero_grad(self) -> None:
        for parameter in (*self._sharded.values(), *self._trained.values()):
            parameter.grad = None

    @contextmanager
    def passes(self, *, last: bool) -> Iterator[None]:
        # Each micro-batch's gradients are scattered at once: whole ones would not fit in between.
        with peers_alive(None):
            yield
        for name, parameter in self._sharded.items():
            if parameter.grad is not None:
                gradient = cast("DTensor", parameter.grad)
                self._trained[name].grad = gradient.to_local()

    def clip(self, max_norm: float) -> float:
        gradients = [p.grad for p in self._slices if p.grad is not None]
        own = nn.utils.get_total_norm(gradients).double().square()
        norm = self._communicator.all_reduce(own.reshape(1)).sqrt()
        nn.utils.clip_grads_with_norm_(self._slices, max_norm, norm.float()[0])
        return norm.item()

    def step(self) -> None:
        self._optimizer.step()

    def weights(self, *, wanted: bool) -> dict[str, Tensor]:
        whole = {}
        for name, value in self._backbone.state_dict().items():
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            if wanted:
                whole[name] = full
        return whole

    def load_weights(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self._backbone.state_dict().items():
            if hasattr(value, "to_local"):
                value.to_local().copy_(self._slice(value, state[name]))
            else:
                value.copy_(state[name])

    def optimizer_state(self, *, wanted: bool) -> dict[str, Tensor]:
        whole = {}
        for key, value in optimizer_state(self._optimizer, self._trained).items():
            name = key.rpartition("/")[0]
            if name in self._sharded and value.shape == self._trained[name].shape:
                value = self._whole(self._sharded[name], value)
            if wanted:
                whole[key] = value
        return whole

    def restore_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        own = {}
        for key, value in state.items():
            name = key.rpartition("/")[0]
            if name in self._sharded and value.shape == self._sharded[name].shape:
                value = self._slice(self._sharded[name], value)
            own[key] = value
        restore_optimizer_state(self._optimizer, self._trained, own)

    def whole_backbone(self) -> Backbone:
        whole = self._pattern.to_empty(device=self._communicator.device)
        whole.load_state_dict(self.weights(wanted=True))
        return whole

    def _slice(self, like: DTensor, value: Tensor) -> Tensor:
        """This rank's slice of a whole tensor. Sends nothing."""
        from torch.distributed.tensor import distribute_tensor

        value = value.to(self._communicator.device).contiguous()
        cut = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
        return cut.to_local()

    def _whole(self, like: DTensor, value: Tensor) -> Tensor:
        """The whole tensor, of every rank's slice. One all-gather of it."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            value,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        ).full_tensor()


def _shard(config: OptimConfig, backbone: Backbone, communicator: Communicator) -> None:
    """Apply fully_shard to each segment, and to the backbone as what holds them together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(communicator.device.type, (communicator.world_size,))
    for segment in backbone.segments():
        again = config.zero_stage == 3 and segment.name not in config.zero_keeps
        fully_shard(list(segment.modules), mesh=mesh, reshard_after_forward=again)
    fully_shard(backbone, mesh=mesh)
    for module in backbone.modules():
        if isinstance(module, FSDPModule):
            # The head divides by the rows of all ranks: gradients are sums.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _without_values(backbone: Backbone) -> Backbone:
    """The same module on the meta device: shapes and layouts, no memory."""
    memo: dict[int, object] = {}
    for parameter in backbone.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(backbone, memo)
