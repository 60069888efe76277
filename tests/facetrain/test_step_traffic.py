"""Formulas of a step's collectives against those it makes: among real ranks, and as one of 256."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from facetrain.backbones import Segment
from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier
from facetrain.config import OptimConfig
from facetrain.distributed import Communicator, CountedCommunicator, World, even_counts
from facetrain.distributed.gradients import GradientSum
from facetrain.distributed.torch_engine import TorchCommunicator
from facetrain.margins import build_margin
from facetrain.step_traffic import (
    Exchange,
    ParameterSize,
    backbone_traffic,
    bucket_sizes,
    calls_by_name,
    head_traffic,
    sent_bytes_by_name,
    trainer_traffic,
)
from facetrain.zero import backbone_update
from tests.facetrain import test_trainer as training
from tests.ranks import raise_first, run_ranks

Counts = tuple[dict[str, int], dict[str, int]]

HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"chunk_rows": 5},
    "norms": {"margin": "adaface"},
    "others": {"margin": "curricularface", "chunk_rows": 7},
    "sub-centers": {"sub_centers": 3},
    "asks": {"asks_counts": True},
    "clips": {"clips_centers": True},
    "copies": {"head_ranks": 1, "clips_centers": True},
}


def _head_step(
    communicator: Communicator,
    num_rows: int,
    num_classes: int,
    size: int,
    margin: str = "arcface",
    head_ranks: int = 0,
    chunk_rows: int = 0,
    sub_centers: int = 1,
    clips_centers: bool = False,
    asks_counts: bool = False,
) -> Counts:
    """What a real step makes; labels are this rank's."""
    counted = CountedCommunicator(communicator)
    head = ShardedClassifier(
        num_classes,
        size,
        build_margin(margin),
        counted,
        sub_centers=sub_centers,
        optimizer=CenterSGD(0.1),
        step_in_backward=not clips_centers,
        schedule=ScheduleWish("row_chunks", chunk_rows),
        head_ranks=head_ranks,
    )
    counts = even_counts(num_rows, communicator.world_size)
    own = counts[communicator.rank]
    embeddings = torch.randn(own, size).requires_grad_()
    labels = torch.arange(own) % num_classes
    counted.reset()
    head(embeddings, labels, counts=None if asks_counts else counts).backward()
    if clips_centers:
        head.clip_gradient(1.0)
    head.step()
    return dict(counted.calls), dict(counted.sent_bytes)


def _predicted(exchanges: list[Exchange]) -> Counts:
    return dict(calls_by_name(exchanges)), dict(sent_bytes_by_name(exchanges))


def _predicted_head(world_size: int, num_rows: int, num_classes: int, size: int, **of: Any) -> Any:
    margin = build_margin(of.pop("margin", "arcface"))
    return _predicted(
        head_traffic(
            num_rows=num_rows,
            size=size,
            world_size=world_size,
            num_classes=num_classes,
            uses_norms=margin.uses_norms,
            shapes_others=margin.shapes_others,
            **of,
        )
    )


def _all_heads(communicator: Communicator, heads: dict[str, dict[str, Any]]) -> dict[str, Counts]:
    return {name: _head_step(communicator, 13, 11, 8, **of) for name, of in heads.items()}


@pytest.mark.parametrize(
    "world_size",
    [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)],
)
def test_heads_make_the_collectives_predicted(world_size: int) -> None:
    heads = dict(HEADS)
    if world_size > 2:
        heads["groups"] = {"head_ranks": world_size // 2, "chunk_rows": 3}
        heads["pairs"] = {"head_ranks": 2}
    ranks = raise_first(run_ranks(_all_heads, world_size, heads))
    # Of rank 0: it has the most rows, and the most classes.
    assert ranks[0] == {
        name: _predicted_head(world_size, 13, 11, 8, **of) for name, of in heads.items()
    }


def test_alone_nothing_is_sent() -> None:
    assert head_traffic(num_rows=8, size=4, world_size=1, num_classes=9, asks_counts=True) == []
    assert backbone_traffic([[ParameterSize(1, 4)]], world_size=1) == []
    assert trainer_traffic(world_size=1) == []


# --- the backbone --------------------------------------------------------------------------------


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 50), nn.Linear(50, 7, bias=False), nn.Linear(7, 30))


def _blocks(model: nn.Sequential) -> list[list[ParameterSize]]:
    return [[ParameterSize.of(p) for p in block.parameters()] for block in model]


def _sum_gradients(communicator: Communicator, bucket_bytes: int) -> Counts:
    counted = CountedCommunicator(communicator)
    model = _layers()
    with GradientSum(list(model.parameters()), counted, bucket_bytes):
        model(torch.ones(2, 3)).sum().backward()
    return dict(counted.calls), dict(counted.sent_bytes)


def _gradient_sums(communicator: Communicator, sizes: list[int]) -> list[Counts]:
    return [_sum_gradients(communicator, size) for size in sizes]


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradient_sums_make_the_collectives_predicted(world_size: int) -> None:
    sizes = [1, 300, 1000, 2**20]
    ranks = raise_first(run_ranks(_gradient_sums, world_size, sizes))
    blocks = _blocks(_layers())
    assert ranks[0] == [
        _predicted(backbone_traffic(blocks, world_size=world_size, bucket_bytes=size))
        for size in sizes
    ]


def test_buckets_by_hand() -> None:
    assert bucket_sizes([5, 3, 4, 9], 8) == [9, 7, 5]
    assert bucket_sizes([2, 2, 2, 2], 4) == [4, 4]
    assert bucket_sizes([], 4) == []


def test_zero_stages_by_hand() -> None:
    blocks = [
        [ParameterSize(20, 5), ParameterSize(4, 5)],
        [ParameterSize(9, 5), ParameterSize(1, 1)],
    ]

    def made(**of: Any) -> list[tuple[str, int, int]]:
        found = backbone_traffic(blocks, world_size=4, **of)
        return [(exchange.name, exchange.whole_bytes, exchange.calls) for exchange in found]

    norm = ("all_reduce", 8, 1)
    first, second = ("reduce_scatter", 120, 1), ("reduce_scatter", 64, 1)
    kept = [norm, ("all_gather", 120, 1), first, ("all_gather", 64, 1), second]
    again = [norm, ("all_gather", 120, 2), first, ("all_gather", 64, 2), second]
    assert made(zero_stage=2) == made(zero_stage=3, keeps=[True, True]) == kept
    assert made(zero_stage=3) == again
    assert made(zero_stage=3, keeps=[False, True]) == again[:3] + kept[3:]
    assert made(zero_stage=3, micro_batches=3)[1] == ("all_gather", 120, 6)
    assert made(zero_stage=0) == [("all_reduce", 166, 1)]
    sent = [("broadcast", size, 1) for size in (100, 20, 45, 1)]
    assert made(zero_stage=1) == [("all_reduce", 166, 1), *sent]


class Twofold(training.Tiny):
    """A backbone of two segments."""

    def __init__(self) -> None:
        super().__init__(with_batch_norm=True)

    def segments(self) -> list[Segment]:
        return [
            Segment("convolution", self.convolution, (self.convolution,)),
            Segment("projection", self._project, (self.norm, self.projection)),
        ]

    def _project(self, features: torch.Tensor) -> torch.Tensor:
        return self.projection(self.norm(features).relu().flatten(1))


class C10dCalls(TorchDispatchMode):
    """Notes collectives and the bytes of their whole tensors."""

    names: ClassVar = {
        "_allgather_base_": "all_gather",
        "_reduce_scatter_base_": "reduce_scatter",
        "allreduce_": "all_reduce",
        "broadcast_": "broadcast",
    }

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "c10d":
            tensors = [arg[0] if isinstance(arg, list) else arg for arg in args[:2]]
            whole_bytes = max(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
            self.found[self.names[function._opname], whole_bytes] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("stage", "keeps"), [(0, ()), (1, ()), (2, ()), (3, ()), (3, ("convolution",))]
)
def test_zero_stages_as_one_of_256(
    first_of_256: TorchCommunicator, stage: int, keeps: tuple[str, ...]
) -> None:
    backbone = Twofold().train()
    blocks = [
        [ParameterSize.of(p) for module in segment.modules for p in module.parameters()]
        for segment in backbone.segments()
    ]
    names = [segment.name for segment in backbone.segments()]
    optim = OptimConfig(zero_stage=stage, zero_keeps=keeps)
    update = backbone_update(optim, backbone, build_margin("arcface"), first_of_256)
    update.set_lr(0.1)
    with C10dCalls() as calls:
        update.zero_grad()
        with update.passes(last=True):
            backbone(torch.ones(2, 3, 112, 112)).sum().backward()
        update.clip(1.0)
        update.step()
    predicted: Counter[tuple[str, int]] = Counter()
    for exchange in backbone_traffic(
        blocks,
        world_size=256,
        zero_stage=stage,
        keeps=[name in keeps for name in names] if stage == 3 else (),
    ):
        predicted[exchange.name, exchange.whole_bytes] += exchange.calls
    assert calls.found == predicted


# --- a whole step --------------------------------------------------------------------------------


def _train(communicator: Communicator, folder: Path, head_ranks: int) -> Counts:
    counted = CountedCommunicator(communicator)
    trainer = training._trainer(counted, folder, head_ranks=head_ranks)
    counted.reset()
    trainer.fit(training._batches(counted, 1, 0, None))
    return dict(counted.calls), dict(counted.sent_bytes)


@pytest.mark.parametrize("head_ranks", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_training_makes_the_collectives_predicted(
    world_size: int, head_ranks: int, tmp_path: Path
) -> None:
    ranks = raise_first(run_ranks(_train, world_size, tmp_path, head_ranks))
    blocks = [[ParameterSize.of(p) for p in training.Tiny(False).parameters()]]
    step = [
        *trainer_traffic(world_size=world_size),
        *head_traffic(
            num_rows=training.BATCH,
            size=training.SIZE,
            world_size=world_size,
            num_classes=training.CLASSES,
            head_ranks=head_ranks,
        ),
        *backbone_traffic(blocks, world_size=world_size),
    ]
    calls, sent = _predicted(step * training.STEPS)
    assert ranks[0] == (calls, sent)


# --- 256 ranks -----------------------------------------------------------------------------------


@pytest.fixture
def first_of_256(monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchCommunicator]:
    """Rank 0 of 256, of which it is the only one there is."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    real = dist.init_process_group
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda *_, **__: real("fake", store=FakeStore(), rank=0, world_size=256),
    )
    yield TorchCommunicator(World(0, 256), torch.device("cpu"), 10.0)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "of",
    [{}, {"chunk_rows": 100}, {"margin": "adaface"}, {"head_ranks": 8}, {"head_ranks": 64}],
    ids=str,
)
def test_the_head_as_one_of_256(first_of_256: TorchCommunicator, of: dict[str, Any]) -> None:
    made = _head_step(first_of_256, 512, 20_000, 64, **of)
    assert made == _predicted_head(256, 512, 20_000, 64, **of)


def test_gradients_as_one_of_256(first_of_256: TorchCommunicator) -> None:
    blocks = _blocks(_layers())
    made = _sum_gradients(first_of_256, 1000)
    assert made == _predicted(backbone_traffic(blocks, world_size=256, bucket_bytes=1000))


def _rise_of_peak_bytes(before: int) -> int:
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.parametrize(
    ("num_classes", "limit_bytes"),
    [(1_000_000, 200e6), pytest.param(10_000_000, 400e6, marks=pytest.mark.slow)],
)
def test_millions_of_classes_as_one_of_256(
    first_of_256: TorchCommunicator, num_classes: int, limit_bytes: float
) -> None:
    """A 256th of the centers, in this process's memory, and no more."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    made = _head_step(first_of_256, 512, num_classes, 512)
    assert made == _predicted_head(256, 512, num_classes, 512)
    assert _rise_of_peak_bytes(before) < limit_bytes
    assert time.process_time() - started < 20
