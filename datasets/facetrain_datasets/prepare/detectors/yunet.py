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
from facetrain_datasets.prepare.detectors.face import Face


class YunetDetector:
    """The ONNX file of YuNet, such as face_detection_yunet_2023mar.onnx.

    Args:
        path: the file.
        min_score: faces less certain are not found.
        longer_side: larger photos are scaled down to this many pixels.

    Raises:
        DatasetError: no such file, or not YuNet.
    """

    def __init__(self, path: Path, min_score: float = 0.5, longer_side: int = 640) -> None:
        self.path = path
        self.min_score = min_score
        self.longer_side = longer_side
        self._of_thread = threading.local()  # a FaceDetectorYN keeps buffers between calls
        self.detect(np.zeros((64, 64, 3), np.uint8), "blank")

    def describe(self) -> str:
        return f"{self.path.name} (YuNet) by OpenCV, score at least {self.min_score:g}"

    def detect(self, image: np.ndarray, name: str) -> list[Face]:
        scale = min(1.0, self.longer_side / max(image.shape[:2]))
        rows, columns = (max(1, round(side * scale)) for side in image.shape[:2])
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        if scale < 1.0:
            bgr = cv2.resize(bgr, (columns, rows), interpolation=cv2.INTER_AREA)
        try:
            network = self._network()
            network.setInputSize((columns, rows))
            _, found = network.detect(bgr)
        except cv2.error as error:
            raise DatasetError(
                f"detector {self.path}: OpenCV cannot run it as YuNet ({error.err}); give a file "
                "such as face_detection_yunet_2023mar.onnx"
            ) from error
        back = np.array([image.shape[1] / columns, image.shape[0] / rows])
        faces = []
        # A row: left, top, width, height, five points, score.
        for row in np.zeros((0, 15)) if found is None else found.astype(np.float64):
            corners = np.concatenate([row[:2], row[:2] + row[2:4]])
            points = row[4:14].reshape(5, 2)
            faces.append(Face(corners * np.tile(back, 2), float(row[14]), points * back))
        return sorted(faces, key=lambda face: -face.score)

    def _network(self) -> Any:
        if not hasattr(self._of_thread, "network"):
            self._of_thread.network = cv2.FaceDetectorYN.create(
                str(self.path), "", (64, 64), self.min_score
            )
        return self._of_thread.network
