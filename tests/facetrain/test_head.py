"""The head as the config asks for it: optimizer, initial centers, and room for it."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from facetrain import head as head_module
from facetrain.classifier import CenterAdamW, CenterSGD, ShardedClassifier
from facetrain.config import HeadConfig, ModelConfig, OptimConfig, RunConfig
from facetrain.distributed import Communicator, SingleCommunicator, World
from facetrain.errors import FacetrainError
from facetrain.head import (
    build_center_optimizer,
    build_head,
    describe_head,
    load_initial_centers,
    room_beside_centers,
)
from facetrain.memory import parse_bytes
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


def _build(config: RunConfig) -> ShardedClassifier:
    return build_head(config, CLASSES, None, SingleCommunicator(), World())


def _loaded(communicator: Communicator, folder: Path) -> dict[str, torch.Tensor]:
    head = build_head(CONFIG, CLASSES, None, communicator, World())
    said = load_initial_centers(head, folder)
    assert said == f"centers and momentum of 11 identities taken over from {folder}"
    return head.rows_state()


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
    head = _build(replace(CONFIG, model=ModelConfig(embedding_size=16)))
    with pytest.raises(FacetrainError, match=r"--initial-centers .*: centers of 8 dimensions; use"):
        load_initial_centers(head, tmp_path)


def test_adamw_takes_over_centers_without_momentum(tmp_path: Path) -> None:
    centers, _ = _write_arcface_head(tmp_path, 2)
    head = _build(replace(CONFIG, optim=OptimConfig(optimizer="adamw")))
    assert load_initial_centers(head, tmp_path).startswith("centers, no momentum of 11")
    assert torch.equal(head.centers.detach(), centers)


def test_initial_centers_are_copied_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facetrain.head._CENTERS_AT_A_TIME", 3)
    centers, momentum = _write_arcface_head(tmp_path, 2)
    rows = _loaded(SingleCommunicator(), tmp_path)
    assert torch.equal(rows["centers"], centers)
    assert torch.equal(rows["centers/momentum"], momentum)


def _loaded_where_a_disk_fails(communicator: Communicator, folder: Path) -> None:
    if communicator.rank == 1:

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        head_module.read_arcface_head = fail  # type: ignore[assignment]
    _loaded(communicator, folder)


def test_a_disk_that_fails_one_rank_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_arcface_head(tmp_path, 1)
    for result in run_ranks(_loaded_where_a_disk_fails, 2, tmp_path):
        assert isinstance(result, FacetrainError)
        assert "cannot be read (Input/output error)" in result.args[0]


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
    assert room_beside_centers(CONFIG, 1000, optimizer, 1, 1000 * SIZE * 8 + 7) == 7
    with pytest.raises(FacetrainError, match=r"1,000 identities over 3 processes.*20.9KiB"):
        room_beside_centers(CONFIG, 1000, optimizer, 3, 334 * SIZE * 8 - 1)
    with pytest.raises(FacetrainError, match="use more processes"):
        build_head(CONFIG, 10**12, None, SingleCommunicator(), World())


def _free(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr("facetrain.head.free_memory_bytes", lambda device: num_bytes)


def test_a_step_takes_a_quarter_of_what_is_free_beside_the_centers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    centers = CLASSES * SIZE * 8
    config = replace(CONFIG, optim=OptimConfig(global_batch_size=4096))
    # The rows' features alone are 12 * 4096 * SIZE bytes.
    _free(monkeypatch, centers + 4 * 2**20)
    tight = _build(config).schedule(4096)
    assert 12 * 4096 * SIZE < tight.transient_bytes <= 2**20
    _free(monkeypatch, centers + 4 * tight.transient_bytes - 4)
    assert _build(config).schedule(4096).transient_bytes < tight.transient_bytes


def test_a_step_that_fits_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    centers = CLASSES * SIZE * 8
    config = replace(CONFIG, optim=OptimConfig(global_batch_size=64, micro_batches=2))
    _free(monkeypatch, centers)
    with pytest.raises(FacetrainError, match=r"a step of 32 rows and 11 identities takes .*0B are"):
        _build(config)
    _free(monkeypatch, centers + 2**20)
    _build(config)


def test_the_least_head_memory_is_named_and_works() -> None:
    config = replace(CONFIG, head=HeadConfig(head_memory="1KiB"))
    with pytest.raises(FacetrainError, match=r"--head-memory 1KiB: .* takes .* at least") as raised:
        _build(config)
    found = re.search(r"takes (\S+) at least", str(raised.value))
    assert found is not None
    built = _build(replace(config, head=HeadConfig(head_memory=found[1])))
    rows = config.optim.largest_micro_batch
    assert built.schedule(rows).transient_bytes <= parse_bytes(found[1])


def test_what_the_head_does_is_said_in_one_line() -> None:
    head = HeadConfig(sample_rate=0.5, head_schedule="class_tiles", tile_classes=4)
    built = _build(replace(CONFIG, head=head))
    text = describe_head(built, 16)
    assert text.startswith("head: 11 identities, CosFace(value=0.35); 50% of the identities")
    assert "class tiles of 4 for 16 rows, made twice" in text
    whole = replace(CONFIG, head=HeadConfig(max_center_gradient_norm=1.0))
    built = _build(whole)
    assert "backward" not in describe_head(built, 16)
