"""Files as arcface_torch's train_v2.py and its forerunners write them, read and cut anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from facetrain.classifier.arcface_heads import ArcfaceHead, read_arcface_head
from facetrain.errors import FacetrainError

SIZE = 6


def _centers(num_classes: int) -> torch.Tensor:
    return torch.randn((num_classes, SIZE), generator=torch.Generator().manual_seed(num_classes))


def _cut(rows: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    """partial_fc_v2's num_local and class_start, of each rank."""
    num_classes, parts = len(rows), []
    for rank in range(world_size):
        num_local = num_classes // world_size + int(rank < num_classes % world_size)
        start = num_classes // world_size * rank + min(rank, num_classes % world_size)
        parts.append(rows[start : start + num_local].clone())
    return parts


class _Head(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)


def _checkpoint(weight: torch.Tensor, optimizer: str = "sgd") -> dict[str, Any]:
    """What train_v2.py saves after a step of every rank by gradients that equal the weights."""
    backbone, head = torch.nn.Linear(3, SIZE), _Head(weight)
    groups = [{"params": backbone.parameters()}, {"params": head.parameters()}]
    stepped: torch.optim.Optimizer
    if optimizer == "sgd":
        stepped = torch.optim.SGD(groups, lr=0.0, momentum=0.9)
    else:
        stepped = torch.optim.AdamW(groups, lr=0.0)
    for parameter in (*backbone.parameters(), *head.parameters()):
        parameter.grad = 2.0 * parameter.detach()
    stepped.step()
    scheduler = torch.optim.lr_scheduler.PolynomialLR(stepped, 10)
    return {
        "epoch": 3,
        "global_step": 40,
        "state_dict_backbone": backbone.state_dict(),
        "state_dict_softmax_fc": head.state_dict(),
        "state_optimizer": stepped.state_dict(),
        "state_lr_scheduler": scheduler.state_dict(),
    }


def _write(folder: Path, form: str, make: Callable[..., Any], num_classes: int, ranks: int) -> None:
    for rank, weight in enumerate(_cut(_centers(num_classes), ranks)):
        torch.save(make(weight), folder / form.format(rank))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A run of 3 ranks and 8 classes: 3, 3 and 2."""
    _write(tmp_path, "checkpoint_gpu_{}.pt", _checkpoint, 8, 3)
    return tmp_path


@pytest.mark.parametrize(
    ("form", "make"),
    [
        ("checkpoint_gpu_{}.pt", _checkpoint),
        ("softmax_fc_gpu_{}.pt", lambda weight: {"weight": weight}),
        ("softmax_fc_gpu_{}.pt", lambda weight: {"weight_activated": weight}),
        ("rank_{}_softmax_weight.pt", lambda weight: weight),
        ("rank:{}_softmax_weight.pt", lambda weight: weight.half()),
    ],
)
@pytest.mark.parametrize(("num_classes", "saved_by"), [(8, 1), (7, 2), (8, 3), (12, 11), (2, 3)])
def test_every_form_is_read_and_cut_for_any_number_of_ranks(
    form: str, make: Callable[..., Any], num_classes: int, saved_by: int, tmp_path: Path
) -> None:
    _write(tmp_path, form, make, num_classes, saved_by)
    (tmp_path / "model.pt").write_bytes(b"the backbone")
    head = read_arcface_head(tmp_path, num_classes)
    assert (head.num_classes, head.embedding_size) == (num_classes, SIZE)
    expected = _centers(num_classes)
    if "rank:" in form:
        expected = expected.half().float()
    for ranks in (1, 2, 3):
        start = 0
        for part in _cut(expected, ranks):
            rows = head.rows(start, start + len(part))
            torch.testing.assert_close(rows, part, rtol=0, atol=0)
            assert rows.dtype == torch.float32
            start += len(part)


def test_files_may_be_given_in_any_order(checkpoints: Path) -> None:
    head = read_arcface_head(sorted(checkpoints.iterdir(), reverse=True))
    torch.testing.assert_close(head.rows(0, 8), _centers(8), rtol=0, atol=0)


def test_momentum_of_sgd_is_found(checkpoints: Path) -> None:
    head = read_arcface_head(checkpoints)
    assert head.has_momentum
    momentum = head.momentum(2, 7)
    assert momentum is not None
    torch.testing.assert_close(momentum, 2.0 * _centers(8)[2:7], rtol=0, atol=0)


def test_momentum_beside_the_centers_is_found_if_every_rank_has_it(tmp_path: Path) -> None:
    _write(tmp_path, "rank_{}_softmax_weight.pt", lambda weight: weight, 7, 2)
    _write(tmp_path, "rank_{}_softmax_weight_mom.pt", lambda weight: -weight, 7, 2)
    momentum = read_arcface_head(tmp_path).momentum(0, 7)
    assert momentum is not None
    torch.testing.assert_close(momentum, -_centers(7), rtol=0, atol=0)
    (tmp_path / "rank_1_softmax_weight_mom.pt").unlink()
    assert read_arcface_head(tmp_path).momentum(0, 7) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda weight: _checkpoint(weight, "adamw"),
        lambda weight: {"state_dict_softmax_fc": {"weight": weight}},
        lambda weight: {**_checkpoint(weight), "state_optimizer": {"param_groups": []}},
        lambda weight: {**_checkpoint(weight), "state_optimizer": _checkpoint(weight[:1])},
    ],
)
def test_other_optimizers_leave_no_momentum(make: Callable[..., Any], tmp_path: Path) -> None:
    _write(tmp_path, "checkpoint_gpu_{}.pt", make, 8, 2)
    head = read_arcface_head(tmp_path)
    assert not head.has_momentum
    assert head.momentum(0, 8) is None
    torch.testing.assert_close(head.rows(0, 8), _centers(8), rtol=0, atol=0)


def test_file_of_the_old_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank_0_softmax_weight.pt"
    torch.save(_centers(4), path, _use_new_zipfile_serialization=False)
    torch.testing.assert_close(ArcfaceHead([path]).rows(1, 3), _centers(4)[1:3], rtol=0, atol=0)


def test_only_files_of_the_rows_asked_for_are_opened(checkpoints: Path) -> None:
    head = read_arcface_head(checkpoints)
    (checkpoints / "checkpoint_gpu_0.pt").unlink()
    (checkpoints / "checkpoint_gpu_2.pt").unlink()
    torch.testing.assert_close(head.rows(3, 6), _centers(8)[3:6], rtol=0, atol=0)
    with pytest.raises(FacetrainError, match=r"checkpoint_gpu_2\.pt: no such file"):
        head.rows(5, 7)


# --- bad input -----------------------------------------------------------------------------------


def _remove(rank: int) -> Callable[[Path], None]:
    return lambda folder: (folder / f"checkpoint_gpu_{rank}.pt").unlink()


def _replace(rank: int, content: Any) -> Callable[[Path], None]:
    return lambda folder: torch.save(content, folder / f"checkpoint_gpu_{rank}.pt")


def _cut_short(folder: Path) -> None:
    path = folder / "checkpoint_gpu_1.pt"
    path.write_bytes(path.read_bytes()[:900])


def _copy_as(name: str) -> Callable[[Path], None]:
    def copy(folder: Path) -> None:
        shutil.copy(folder / "checkpoint_gpu_0.pt", folder / name)

    return copy


class _Runs:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove(1), r"checkpoint_gpu_1\.pt: missing, though there is a file of rank 2"),
        (_remove(0), r"checkpoint_gpu_0\.pt: missing"),
        # 6 classes in 2 files are a head of their own; only the number expected tells.
        (_remove(2), r"6 classes in 2 rank files, expected 8; add the files of the ranks"),
        (
            _replace(1, {"state_dict_softmax_fc": {"weight": torch.ones((4, SIZE))}}),
            r"checkpoint_gpu_1\.pt: 4 classes, .* 9 in all must hold 3 here",
        ),
        (
            _replace(0, {"state_dict_softmax_fc": {"weight": torch.ones((5, SIZE))}}),
            r"checkpoint_gpu_0\.pt: 5 classes, .* 10 in all must hold 4",
        ),
        (
            _replace(1, {"state_dict_softmax_fc": {"weight": torch.ones((3, SIZE + 1))}}),
            r"checkpoint_gpu_1\.pt: centers of 7 dimensions, but 6 in checkpoint_gpu_0\.pt",
        ),
        (_replace(1, {"state_dict_backbone": {}}), r"checkpoint_gpu_1\.pt: no centers in it"),
        (_replace(1, {"state_dict_softmax_fc": None}), r"checkpoint_gpu_1\.pt: no centers in it"),
        (_replace(1, torch.ones((3, SIZE)).long()), r"checkpoint_gpu_1\.pt: no centers in it"),
        (_replace(1, [1, 2]), r"checkpoint_gpu_1\.pt: no centers in it"),
        (
            _replace(1, {"weight": _Runs()}),
            r"checkpoint_gpu_1\.pt: (not a torch file|damaged|is empty)",
        ),
        (_cut_short, r"checkpoint_gpu_1\.pt: damaged, cut short"),
        (_copy_as("softmax_fc_gpu_0.pt"), r"files of 2 forms, checkpoint_gpu_\{rank\}\.pt and"),
        (_copy_as("checkpoint_gpu_00.pt"), r"checkpoint_gpu_00\.pt: a second file of rank 0"),
    ],
)
def test_bad_files_are_named_in_one_line(
    damage: Callable[[Path], None],
    message: str,
    checkpoints: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(checkpoints)
    with pytest.raises(FacetrainError, match=message) as caught:
        read_arcface_head(checkpoints, num_classes=8)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_more_classes_than_expected_are_refused(checkpoints: Path) -> None:
    with pytest.raises(FacetrainError, match="8 classes in 3 rank files, expected 5; use the data"):
        read_arcface_head(checkpoints, num_classes=5)


def test_numbers_that_are_not_finite_are_refused_with_their_class(checkpoints: Path) -> None:
    weight = _cut(_centers(8), 3)[1]
    weight[2, 0] = torch.nan
    _replace(1, {"state_dict_softmax_fc": {"weight": weight}})(checkpoints)
    head = read_arcface_head(checkpoints)
    head.rows(0, 5)
    with pytest.raises(FacetrainError, match=r"checkpoint_gpu_1\.pt: class 5 holds NaN"):
        head.rows(0, 8)


def test_file_that_changed_in_between_is_refused(checkpoints: Path) -> None:
    head = read_arcface_head(checkpoints)
    _replace(1, {"state_dict_softmax_fc": {"weight": torch.ones((4, SIZE))}})(checkpoints)
    with pytest.raises(FacetrainError, match=r"checkpoint_gpu_1\.pt: changed while"):
        head.rows(0, 8)


def test_places_without_a_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FacetrainError, match="no such folder"):
        read_arcface_head(tmp_path / "absent")
    with pytest.raises(FacetrainError, match="no file of a head in this folder"):
        read_arcface_head(tmp_path)
    with pytest.raises(FacetrainError, match="no file given"):
        read_arcface_head([])
    with pytest.raises(FacetrainError, match=r"model\.pt: not the name of a head's file"):
        read_arcface_head([tmp_path / "model.pt"])
    with pytest.raises(FacetrainError, match=r"checkpoint_gpu_0\.pt: no such file"):
        read_arcface_head([tmp_path / "checkpoint_gpu_0.pt"])
    with pytest.raises(FacetrainError, match="files of 2 forms"):
        read_arcface_head([tmp_path / "checkpoint_gpu_0.pt", tmp_path / "softmax_fc_gpu_1.pt"])
