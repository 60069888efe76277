"""Class centers that arcface_torch saved, one file per rank, as one head that can be cut anew.

    head = read_arcface_head(Path("work_dirs/ms1mv3_r50"), num_classes=93431)
    centers = head.rows(first_class, end_class)

Of C classes, rank r of W holds C // W, and one more where r < C % W, in order. Forms, by age:

    checkpoint_gpu_{r}.pt         dict of a run's whole state: "state_dict_softmax_fc" holds the
                                  centers as "weight", "state_optimizer" SGD's momentum
    softmax_fc_gpu_{r}.pt         the head's state dict: "weight", or "weight_activated" alone
    rank_{r}_softmax_weight.pt    the tensor; momentum beside it in rank_{r}_softmax_weight_mom.pt
                                  (once written with "rank:" for "rank_")

SGD's momentum there is the one of `CenterSGD`: b <- m b + g + w x. No file says what W or C was, so
only a number of classes from elsewhere tells that the last ranks' files are missing.

Files are mapped into memory, not read: a call touches the rows that it returns. Those of the
format before torch 1.6 cannot be mapped, and are read one rank at a time.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from facetrain.backbones.arcface_weights import why_unreadable
from facetrain.distributed import even_counts
from facetrain.errors import FacetrainError

_FORMS = (
    "checkpoint_gpu_{rank}.pt",
    "softmax_fc_gpu_{rank}.pt",
    "rank_{rank}_softmax_weight.pt",
    "rank:{rank}_softmax_weight.pt",
)
_PATTERNS = {form: re.compile(re.escape(form).replace(r"\{rank\}", r"(\d+)")) for form in _FORMS}


def read_arcface_head(source: Path | Sequence[Path], num_classes: int | None = None) -> ArcfaceHead:
    """The head in a folder of per-rank files, or in the files given, in any order.

    Args:
        num_classes: C, where it is known.

    Raises:
        FacetrainError: no such files, or not one head's; see `ArcfaceHead`.
    """
    if not isinstance(source, Path):
        return ArcfaceHead(source, num_classes)
    if not source.is_dir():
        raise FacetrainError(
            f"arcface head {source}: no such folder; pass the output folder of arcface_torch's run"
        )
    found: dict[str, list[Path]] = {}
    for path in sorted(source.iterdir()):
        form = _form_of(path)
        if form is not None:
            found.setdefault(form[0], []).append(path)
    if not found:
        raise FacetrainError(
            f"arcface head {source}: no file of a head in this folder; it must hold one "
            f"{' or '.join(_FORMS[:3])} for each rank (save_all_states = True in arcface_torch)"
        )
    if len(found) > 1:
        raise FacetrainError(
            f"arcface head {source}: files of {len(found)} forms, {' and '.join(found)}; "
            "move those that are not wanted elsewhere, or pass the files"
        )
    (paths,) = found.values()
    return ArcfaceHead(paths, num_classes)


@dataclass(frozen=True)
class _File:
    """One rank's file; momentum, if it was found, has the shape of the centers."""

    path: Path
    num_classes: int
    has_momentum: bool


class ArcfaceHead:
    """Centers of all ranks, read when they are asked for.

    Attributes:
        num_classes: C.
        embedding_size: D.
        has_momentum: SGD's momentum is known for every class.

    Args:
        paths: one file for each rank, in any order.
        num_classes: C, where it is known.

    Raises:
        FacetrainError: not a file of a head, a missing rank, sizes that are not arcface_torch's
            cut of one head, or another number of classes than expected.
    """

    def __init__(self, paths: Sequence[Path], num_classes: int | None = None) -> None:
        self._files: list[_File] = []
        self.embedding_size = 0
        for path in _by_rank(paths):
            weight, momentum = _read(path)
            self.embedding_size = self.embedding_size or weight.shape[1]
            if weight.shape[1] != self.embedding_size:
                raise FacetrainError(
                    f"arcface head {path}: centers of {weight.shape[1]} dimensions, but "
                    f"{self.embedding_size} in {self._files[0].path.name}; use one run's files"
                )
            self._files.append(_File(path, len(weight), momentum is not None))
        self.has_momentum = all(file.has_momentum for file in self._files)
        self.num_classes = sum(file.num_classes for file in self._files)
        self._check_counts(num_classes)

    def _check_counts(self, expected: int | None) -> None:
        counts = even_counts(self.num_classes, len(self._files))
        for file, count in zip(self._files, counts, strict=True):
            if file.num_classes != count:
                raise FacetrainError(
                    f"arcface head {file.path}: {file.num_classes:,} classes, where rank files "
                    f"0 to {len(self._files) - 1} with {self.num_classes:,} in all must hold "
                    f"{count:,} here; use all files of one run and of no other"
                )
        if expected is not None and self.num_classes != expected:
            raise FacetrainError(
                f"arcface head {self._files[0].path.parent}: {self.num_classes:,} classes in "
                f"{len(self._files)} rank files, expected {expected:,}; "
                + (
                    "add the files of the ranks that are missing at the end"
                    if self.num_classes < expected
                    else "use the data that the head was trained on"
                )
            )

    def rows(self, first: int, end: int) -> Tensor:
        """Centers of classes [first, end), fp32 [end - first, D].

        Raises:
            FacetrainError: a file has changed, or holds a number that is not finite.
        """
        return self._gather(first, end, momentum=False)

    def momentum(self, first: int, end: int) -> Tensor | None:
        """Momentum of classes [first, end), fp32 [end - first, D]; None where it is not known."""
        return self._gather(first, end, momentum=True) if self.has_momentum else None

    def _gather(self, first: int, end: int, *, momentum: bool) -> Tensor:
        assert 0 <= first <= end <= self.num_classes
        gathered = torch.empty((end - first, self.embedding_size))
        start = 0
        for file in self._files:
            low, high = max(first, start), min(end, start + file.num_classes)
            if low < high:
                values = _read(file.path)[momentum]
                if values is None or values.shape != (file.num_classes, self.embedding_size):
                    raise FacetrainError(
                        f"arcface head {file.path}: changed while it was read; start again"
                    )
                target = gathered[low - first : high - first]
                target.copy_(values[low - start : high - start])
                _check_finite(target, low, file.path)
            start += file.num_classes
        return gathered


def _check_finite(rows: Tensor, first: int, path: Path) -> None:
    wrong = (~rows.isfinite().all(1)).nonzero()
    if len(wrong):
        raise FacetrainError(
            f"arcface head {path}: class {first + int(wrong[0])} holds NaN or infinity; use an "
            "earlier checkpoint"
        )


# --- files ---------------------------------------------------------------------------------------


def _form_of(path: Path) -> tuple[str, int] | None:
    """Form and rank of a file of a head, by its name."""
    for form, pattern in _PATTERNS.items():
        match = pattern.fullmatch(path.name)
        if match is not None:
            return form, int(match[1])
    return None


def _by_rank(paths: Sequence[Path]) -> list[Path]:
    """The files in rank order; each rank once, from 0 on, all of one form."""
    by_rank: dict[int, Path] = {}
    forms = set()
    for path in paths:
        form = _form_of(path)
        if form is None:
            raise FacetrainError(
                f"arcface head {path}: not the name of a head's file, which is one of "
                f"{', '.join(_FORMS[:3])}"
            )
        if form[1] in by_rank:
            raise FacetrainError(
                f"arcface head {path}: a second file of rank {form[1]}, beside "
                f"{by_rank[form[1]]}; use one run's files"
            )
        forms.add(form[0])
        by_rank[form[1]] = path
    if len(forms) > 1:
        raise FacetrainError(
            f"arcface head: files of {len(forms)} forms, {' and '.join(sorted(forms))}; use one"
        )
    if not by_rank:
        raise FacetrainError("arcface head: no file given; pass one for each rank")
    missing = sorted(set(range(max(by_rank))) - set(by_rank))
    if missing:
        absent = by_rank[max(by_rank)].with_name(forms.pop().format(rank=missing[0]))
        raise FacetrainError(
            f"arcface head {absent}: missing, though there is a file of rank {max(by_rank)}; "
            "use all files of the run"
        )
    return [by_rank[rank] for rank in sorted(by_rank)]


def _read(path: Path) -> tuple[Tensor, Tensor | None]:
    """A rank's centers [k, D] and, if it is found, their momentum [k, D], both mapped."""
    content = _load(path)
    weight: Any = None
    momentum: Any = None
    if isinstance(content, Tensor):
        weight = content
        beside = path.with_name(path.name.replace("_weight.pt", "_weight_mom.pt"))
        if beside != path and beside.is_file():
            momentum = _load(beside)
    elif isinstance(content, Mapping):
        state = content.get("state_dict_softmax_fc", content)
        if isinstance(state, Mapping):
            weight = state.get("weight", state.get("weight_activated"))
        momentum = _momentum_of(content.get("state_optimizer"))
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        raise FacetrainError(
            f"arcface head {path}: no centers in it, expected a tensor [classes, dimensions] "
            "alone or as weight of state_dict_softmax_fc; pass the files of arcface_torch's head"
        )
    fits = isinstance(momentum, Tensor) and momentum.shape == weight.shape
    return weight, momentum if fits else None


def _momentum_of(state: Any) -> Any:
    """SGD's momentum of the head, which arcface_torch puts last, in a parameter group of its own.

    None where the optimizer's state looks otherwise.
    """
    try:
        (number,) = state["param_groups"][-1]["params"]
        return state["state"][number]["momentum_buffer"]
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _load(path: Path) -> Any:
    """What `torch.save` wrote, mapped where its format allows; nothing in it is executed."""
    if not path.is_file():
        raise FacetrainError(f"arcface head {path}: no such file; check the path")
    try:
        mapped = zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    # torch reports damage by whichever layer meets it first: zip reader, unpickler or tensor maker.
    except Exception as error:
        raise FacetrainError(
            f"arcface head {path}: {why_unreadable(path, error)}; copy it again"
        ) from error
