"""Detectors of faces with five landmarks, by name; each takes a file that the user gives.

detector = open_detector(Path("scrfd_2.5g_bnkps.onnx"))
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.prepare.detectors.face import Detector, Face
from facetrain_datasets.prepare.detectors.landmarks_file import LandmarksFile
from facetrain_datasets.prepare.detectors.scrfd import ScrfdDetector
from facetrain_datasets.prepare.detectors.yunet import YunetDetector

__all__ = ["DETECTORS", "Detector", "Face", "open_detector"]

DETECTORS: dict[str, Callable[[Path, float], Detector]] = {
    "onnx": ScrfdDetector,
    "yunet": YunetDetector,
    "csv": LandmarksFile,
}

# Names of YuNet's outputs, which stand in its file as they are.
_YUNET_OUTPUTS = (b"cls_8", b"obj_8", b"bbox_8", b"kps_8")


def open_detector(path: Path, kind: str = "auto", min_score: float = 0.5) -> Detector:
    """The detector in a file.

    Args:
        path: an ONNX file, or a CSV file of landmarks.
        kind: a name of `DETECTORS`, or "auto": by the file's suffix, and YuNet by its outputs.
        min_score: faces less certain are not found.

    Raises:
        DatasetError: unknown kind, no such file, or not a file of that kind.
    """
    if kind not in ("auto", *DETECTORS):
        known = ", ".join(("auto", *DETECTORS))
        raise DatasetError(f"detector {kind!r} is unknown; choose one of {known}")
    if not path.is_file():
        raise DatasetError(f"detector {path}: no such file; give an .onnx file or a landmarks CSV")
    if kind == "auto":
        if path.suffix.lower() == ".csv":
            kind = "csv"
        else:
            content = path.read_bytes()
            kind = "yunet" if all(name in content for name in _YUNET_OUTPUTS) else "onnx"
    return DETECTORS[kind](path, min_score)
