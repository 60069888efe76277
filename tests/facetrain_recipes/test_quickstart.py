"""The faces of the quickstart: each range of people in a folder of its own, and never mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from facetrain.errors import ConfigError, FacetrainError
from facetrain_datasets.formats.image_folder import ImageFolder
from facetrain_recipes.quickstart import Flags, draw, main


def _sets(flags: Flags) -> tuple[ImageFolder, ImageFolder]:
    return (
        draw(flags, "training", flags.identities, 0),
        draw(flags, "held-out", flags.held_out_identities, flags.identities),
    )


@pytest.mark.parametrize("identities", [[2, 3], [3, 2]])
def test_other_numbers_of_people_never_mix_the_sets(identities: list[int], tmp_path: Path) -> None:
    for count in identities:
        flags = Flags(
            identities=count, images_per_identity=2, held_out_identities=2, faces=tmp_path
        )
        training, held_out = _sets(flags)
        people = [f"person_{number:05d}" for number in range(count + 2)]
        assert [*training.identities, *held_out.identities] == people
    assert {path.name for path in tmp_path.iterdir()} == {
        "training-0-2x2-seed0",
        "training-0-3x2-seed0",
        "held-out-2-4x2-seed0",
        "held-out-3-5x2-seed0",
    }


def test_a_folder_with_other_people_is_refused(tmp_path: Path) -> None:
    flags = Flags(identities=2, images_per_identity=2, held_out_identities=2, faces=tmp_path)
    training, _ = _sets(flags)
    folder = tmp_path / "training-0-2x2-seed0"
    assert len(training.identities) == 2
    shutil.copytree(folder / "person_00000", folder / "person_00007")
    with pytest.raises(FacetrainError, match=r"training-0-2x2-seed0: holds 3 people, 2 were drawn"):
        _sets(flags)


def test_all_counts_that_are_too_small_are_named(tmp_path: Path) -> None:
    flags = Flags(identities=1, images_per_identity=0, held_out_identities=-1, faces=tmp_path)
    with pytest.raises(ConfigError) as raised:
        main(flags)
    assert raised.value.problems == (
        "--identities 1: must be at least 2",
        "--images-per-identity 0: must be at least 2",
        "--held-out-identities -1: must be at least 2",
    )
    assert list(tmp_path.iterdir()) == []
