"""A small set of drawn faces in LFW's layout, and its test list."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from facetrain_datasets.synthetic import write_synthetic_faces

TRAIN, TEST, PER_PERSON = 4, 3, 4


@dataclass(frozen=True)
class MiniLfw:
    """`data` and `protocols` folders, and the flags that train on them in seconds."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "faces"

    @property
    def protocols(self) -> Path:
        return self.root / "protocols"

    def image(self, person: int, number: int) -> Path:
        name = f"person_{person:05d}"
        return self.data / name / f"{name}_{number:04d}.jpg"

    def flags(self, *more: str, num_processes: int = 1) -> list[str]:
        return [
            *("train", "lfw", "--data", str(self.data), "--protocols", str(self.protocols)),
            *("--out", str(self.root / "run"), "--num-processes", str(num_processes)),
            *("--backbone", "mobilefacenet_tiny", "--embedding-size", "16", "--transforms", "flip"),
            *("--global-batch-size", "6", "--epochs", "1.5", "--warmup-epochs", "0"),
            *("--memory", "1GiB", "--log-every", "1", "--checkpoint-every", "2"),
            *more,
        ]


@pytest.fixture(scope="session")
def drawn_faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mini-lfw")
    faces = root / "faces"
    write_synthetic_faces(
        faces, num_identities=TRAIN + TEST, images_per_identity=PER_PERSON, seed=5
    )
    for person in sorted(faces.glob("person_*")):
        for number, image in enumerate(sorted(person.iterdir()), start=1):
            image.rename(person / f"{person.name}_{number:04d}.jpg")
    lines = ["12"]
    names = [f"person_{person:05d}" for person in range(TRAIN, TRAIN + TEST)]
    for name in names:
        lines += [f"{name}\t{i}\t{j}" for i, j in ((1, 2), (1, 3), (2, 4), (3, 4))]
    for left, right in ((0, 1), (0, 2), (1, 2)):
        lines += [f"{names[left]}\t{i}\t{names[right]}\t{i}" for i in range(1, 5)]
    protocols = root / "protocols"
    protocols.mkdir()
    (protocols / "lfw_pairsDevTest.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def mini_lfw(drawn_faces: Path, tmp_path: Path) -> MiniLfw:
    """A copy to spoil."""
    shutil.copytree(drawn_faces, tmp_path / "set")
    return MiniLfw(tmp_path / "set")


Run = Callable[..., int]
