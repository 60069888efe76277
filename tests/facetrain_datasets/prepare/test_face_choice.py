"""Which face is chosen of several."""

from __future__ import annotations

import numpy as np
import pytest

from facetrain_datasets.prepare.detectors import Face
from facetrain_datasets.prepare.face_choice import FACE_CHOICES


def face(left: float, top: float, right: float, bottom: float) -> Face:
    return Face(np.array([left, top, right, bottom]), 0.9, np.zeros((5, 2)))


LARGE_AT_THE_EDGE = face(0, 0, 40, 40)
SMALL_IN_THE_MIDDLE = face(45, 40, 65, 62)
WIDE = face(60, 0, 100, 10)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("largest", LARGE_AT_THE_EDGE), ("central", SMALL_IN_THE_MIDDLE), ("reject", None)],
)
def test_choice_of_several(choice: str, expected: Face | None) -> None:
    faces = [WIDE, SMALL_IN_THE_MIDDLE, LARGE_AT_THE_EDGE]
    assert FACE_CHOICES[choice](faces, 100, 100) is expected


@pytest.mark.parametrize("choice", sorted(FACE_CHOICES))
def test_a_single_face_is_chosen_wherever_it_is(choice: str) -> None:
    assert FACE_CHOICES[choice]([WIDE], 100, 100) is WIDE
