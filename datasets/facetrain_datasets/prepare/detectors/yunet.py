"""YuNet, by OpenCV's own FaceDetectorYN: no further package needed.

W. Wu, H. Peng, S. Yu, "YuNet: A Tiny Millisecond-level Face Detector", Machine Intelligence
Research 2023.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.prepare.detectors.face import Face, detect_scaled


class YunetDetector:
    """The ONNX file of YuNet, such as face_detection_yunet_2023mar.onnx.

    Args:
        path: the file.
        min_score: faces less certain are not found.

    Raises:
        DatasetError: no such file, or not YuNet.
    """

    def __init__(self, path: Path, min_score: float = 0.5) -> None:
        self.path = path
        self.min_score = min_score
        self._creating = threading.Lock()
        self._of_thread = threading.local()  # a FaceDetectorYN keeps buffers between calls
        self.detect(np.zeros((64, 64, 3), np.uint8), "blank")

    def describe(self) -> str:
        return f"{self.path.name} (YuNet) by OpenCV, score at least {self.min_score:g}"

    def detect(self, image: np.ndarray, name: str) -> list[Face]:
        return detect_scaled(image, self._detect)

    def _detect(self, image: np.ndarray) -> list[Face]:
        height, width = image.shape[:2]
        try:
            network = self._network()
            network.setInputSize((width, height))
            _, found = network.detect(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
        except cv2.error as error:
            raise DatasetError(
                f"detector {self.path}: OpenCV cannot run it as YuNet ({error.err}); give a file "
                "such as face_detection_yunet_2023mar.onnx"
            ) from error
        faces = []
        # A row: left, top, width, height, five points, score.
        for row in np.zeros((0, 15)) if found is None else found.astype(np.float64):
            box = np.concatenate([row[:2], row[:2] + row[2:4]])
            faces.append(Face(box, float(row[14]), row[4:14].reshape(5, 2)))
        return sorted(faces, key=lambda face: -face.score)

    def _network(self) -> Any:
        if not hasattr(self._of_thread, "network"):
            with self._creating:
                self._of_thread.network = self._create()
        return self._of_thread.network

    def _create(self) -> Any:
        # OpenCV 5 warns of a default target that its new engine has no choice of.
        level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
        try:
            return cv2.FaceDetectorYN.create(str(self.path), "", (64, 64), self.min_score)
        finally:
            cv2.utils.logging.setLogLevel(level)
