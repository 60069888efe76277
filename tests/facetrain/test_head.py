"""The head as the config asks for it: optimizer, initial centers, and room for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from facetrain.classifier import CenterAdamW, CenterSGD
from facetrain.config import HeadConfig, ModelConfig, OptimConfig, RunConfig
from facetrain.distributed import Communicator, SingleCommunicator, World
from facetrain.errors import FacetrainError
from facetrain.head import build_center_optimizer, build_head, check_room, describe_head
from tests.ranks import raise_first, run_ranks

CLASSES, SIZE = 11, 8
CONFIG = RunConfig(model=ModelConfig(embedding_size=SIZE), optim=OptimConfig(momentum=0.8))


def _write_arcface_head(folder: Path, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Files as arcface_torch's train_v2.py saves them, rank by rank."""
    centers, momentum = torch.randn(CLASSES, SIZE), torch.randn(CLASSES, SIZE)
    first = 0
    for rank in range(world_size):
        count = CLASSES // world_size + (rank < CLASSES % world_size)
        rows = slice(first, first + count)
        content = {
            "epoch": 1,
            "global_step": 10,
            "state_dict_backbone": {},
            "state_dict_softmax_fc": {"weight": centers[rows].clone()},
            "state_optimizer": {
                "state": {0: {"momentum_buffer": momentum[rows].clone()}},
                "param_groups": [{"params": [0]}],
            },
        }
        torch.save(content, folder / f"checkpoint_gpu_{rank}.pt")
        first += count
    return centers, momentum


def _loaded(communicator: Communicator, folder: Path) -> dict[str, torch.Tensor]:
    config = replace(CONFIG, head=HeadConfig(initial_centers=folder))
    return build_head(config, CLASSES, None, communicator, World()).rows_state()


@pytest.mark.parametrize(("written", "read"), [(1, 2), (3, 1), (2, 3)])
def test_a_head_of_arcface_torch_is_cut_anew(written: int, read: int, tmp_path: Path) -> None:
    centers, momentum = _write_arcface_head(tmp_path, written)
    if read == 1:
        ranks = [_loaded(SingleCommunicator(), tmp_path)]
    else:
        ranks = raise_first(run_ranks(_loaded, read, tmp_path))
    assert torch.equal(torch.cat([rank["centers"] for rank in ranks]), centers)
    assert torch.equal(torch.cat([rank["centers/momentum"] for rank in ranks]), momentum)


def test_a_head_of_arcface_torch_that_does_not_fit_is_named(tmp_path: Path) -> None:
    _write_arcface_head(tmp_path, 2)
    for changes, message in (
        ({"model": ModelConfig(embedding_size=16)}, "use --embedding-size 8"),
        ({"head": HeadConfig(initial_centers=tmp_path, sub_centers=2)}, "use --sub-centers 1"),
    ):
        config = replace(CONFIG, head=HeadConfig(initial_centers=tmp_path))
        with pytest.raises(FacetrainError, match=message):
            build_head(replace(config, **changes), CLASSES, None, SingleCommunicator(), World())


def test_the_optimizer_follows_the_config() -> None:
    sgd = build_center_optimizer(replace(CONFIG, head=HeadConfig(center_momentum="bf16")))
    assert isinstance(sgd, CenterSGD)
    assert (sgd.momentum, sgd.momentum_dtype) == (0.8, torch.bfloat16)
    adamw = build_center_optimizer(
        replace(CONFIG, optim=OptimConfig(optimizer="adamw", weight_decay=0.1))
    )
    assert isinstance(adamw, CenterAdamW)
    assert adamw.weight_decay == 0.1


def test_centers_that_do_not_fit_are_refused_before_they_are_made() -> None:
    optimizer = build_center_optimizer(CONFIG)
    check_room(CONFIG, 1000, optimizer, 1, 1000 * SIZE * 8)
    with pytest.raises(FacetrainError, match=r"1,000 identities over 3 processes.*20.9KiB"):
        check_room(CONFIG, 1000, optimizer, 3, 334 * SIZE * 8 - 1)
    with pytest.raises(FacetrainError, match="use more processes"):
        build_head(CONFIG, 10**12, None, SingleCommunicator(), World())


def test_what_the_head_does_is_said_in_one_line() -> None:
    head = HeadConfig(sample_rate=0.5, head_schedule="class_tiles", tile_classes=4)
    built = build_head(replace(CONFIG, head=head), CLASSES, None, SingleCommunicator(), World())
    text = describe_head(built, 16)
    assert "11 identities, class tiles of 4" in text
    assert "50% of the identities take part" in text
    whole = replace(CONFIG, head=HeadConfig(max_center_gradient_norm=1.0))
    built = build_head(whole, CLASSES, None, SingleCommunicator(), World())
    assert "backward" not in describe_head(built, 16)
