"""Which of a photo's faces is its identity's: pure functions by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from facetrain_datasets.prepare.detectors.face import Face


def largest(faces: Sequence[Face], width: int, height: int) -> Face | None:
    """The face with the largest box."""
    return max(faces, key=lambda face: face.width * face.height)


def central(faces: Sequence[Face], width: int, height: int) -> Face | None:
    """The face whose box is nearest the middle of the photo."""

    def distance(face: Face) -> float:
        x, y = face.center
        return (x - width / 2.0) ** 2 + (y - height / 2.0) ** 2

    return min(faces, key=distance)


def only(faces: Sequence[Face], width: int, height: int) -> Face | None:
    """The face where there is one; none where there are several."""
    return faces[0] if len(faces) == 1 else None


#: From the faces of a photo (one at least), its width and its height to one of them; None rejects
#: the photo.
FACE_CHOICES: dict[str, Callable[[Sequence[Face], int, int], Face | None]] = {
    "largest": largest,
    "central": central,
    "reject": only,
}
