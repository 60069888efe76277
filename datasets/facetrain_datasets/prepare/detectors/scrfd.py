"""Five-point ONNX detectors with SCRFD's outputs, run by onnxruntime.

A level of stride s has anchors at the corners of cells of s pixels, one or more at each. Each comes
with a score, the distances to the four sides of its box and the offsets of five points, in units of
s. How many levels and anchors there are follows from the shapes of the outputs. J. Guo et al.,
"Sample and Computation Redistribution for Efficient Face Detection", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.prepare.detectors.face import Face, detect_scaled

_FIRST_STRIDE = 8
_COLUMNS = (1, 4, 10)  # score, box, points
_MAX_OVERLAP = 0.4
_PAD_TO = 32
_MEAN, _STD = 127.5, 128.0


class ScrfdDetector:
    """A detector's ONNX file, such as scrfd_2.5g_bnkps.onnx.

    Args:
        path: the file.
        min_score: faces less certain are not found.

    Raises:
        DatasetError: onnxruntime absent, or the file is no such detector.
    """

    def __init__(self, path: Path, min_score: float = 0.5) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise DatasetError(
                f"detector {path}: needs onnxruntime; pip install 'facetrain[onnx]'"
            ) from error
        self.path = path
        self.min_score = min_score
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # photos run side by side instead
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            (self._input,) = self._session.get_inputs()
            _, _, height, width = self._input.shape
            is_fixed = isinstance(height, int) and isinstance(width, int)
            self._fixed_size = (height, width) if is_fixed else None
            # Shapes in the file may be symbolic, so a blank photo says what comes out.
            self.detect(np.zeros((64, 64, 3), np.uint8), "blank")
        except DatasetError:
            raise
        # onnxruntime raises a class of its own for each kind of damage; all derive from Exception.
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:160]
            raise DatasetError(
                f"detector {path}: not a usable ONNX detector ({reason}); give one such as "
                "scrfd_2.5g_bnkps.onnx"
            ) from error

    def describe(self) -> str:
        return f"{self.path.name} by onnxruntime, score at least {self.min_score:g}"

    def detect(self, image: np.ndarray, name: str) -> list[Face]:
        return detect_scaled(image, self._detect)

    def _detect(self, image: np.ndarray) -> list[Face]:
        rows, columns = image.shape[:2]
        height, width = self._fixed_size or (_padded(rows), _padded(columns))
        scale = min(1.0, height / rows, width / columns)
        if scale < 1.0:
            rows, columns = max(1, int(rows * scale)), max(1, int(columns * scale))
            image = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA)
        canvas = np.zeros((height, width, 3), np.uint8)
        canvas[:rows, :columns] = image
        inputs = cv2.dnn.blobFromImage(canvas, 1.0 / _STD, mean=(_MEAN,) * 3)
        outputs = self._session.run(None, {self._input.name: inputs})
        try:
            scores, boxes, points = decode(outputs, height, width, self.min_score)
        except DatasetError as error:
            raise DatasetError(f"detector {self.path}: {error}") from error
        sizes = np.c_[boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]
        kept = cv2.dnn.NMSBoxes(sizes.tolist(), scores.tolist(), self.min_score, _MAX_OVERLAP)
        return [
            Face(boxes[row] / scale, float(scores[row]), points[row] / scale)
            for row in np.asarray(kept, dtype=np.int64).reshape(-1)
        ]


def _padded(side: int) -> int:
    """Room for whole cells of the usual strides."""
    return -(-side // _PAD_TO) * _PAD_TO


def decode(
    outputs: Sequence[np.ndarray], height: int, width: int, min_score: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What anchors of at least `min_score` say, overlapping ones included.

    Args:
        outputs: in any order, each [anchors, n] or [1, anchors, n] with n = 1, 4 or 10.
        height: of the network's input.
        width: of the network's input.
        min_score: anchors below it are left out.

    Returns:
        Scores [M], boxes [M, 4] (left, top, right, bottom) and points [M, 5, 2], float64.

    Raises:
        DatasetError: the shapes are not those of such a detector.
    """
    # The finest level has the most anchors.
    by_columns = [
        sorted((o.reshape(-1, n) for o in outputs if o.shape[-1:] == (n,)), key=len, reverse=True)
        for n in _COLUMNS
    ]
    num_anchors = [[len(level) for level in levels] for levels in by_columns]
    found = [list(output.shape) for output in outputs]
    wrong = DatasetError(
        f"outputs {found} for a {width}x{height} input are not SCRFD's: per level of strides 8, "
        "16, 32, ... scores [n, 1], boxes [n, 4] and points [n, 10]; give one such as "
        "scrfd_2.5g_bnkps.onnx"
    )
    if (
        not outputs
        or 3 * len(num_anchors[0]) != len(outputs)
        or any(n != num_anchors[0] for n in num_anchors)
    ):
        raise wrong
    kept = []
    for level, (scores, distances, offsets) in enumerate(zip(*by_columns, strict=True)):
        stride = _FIRST_STRIDE << level
        rows, columns = -(-height // stride), -(-width // stride)
        per_cell, rest = divmod(len(scores), rows * columns)
        if rest or not per_cell:
            raise wrong
        chosen = np.flatnonzero(scores[:, 0] >= min_score)
        y, x = np.divmod(chosen // per_cell, columns)
        anchors = stride * np.stack([x, y], axis=1).astype(np.float64)
        sides = stride * distances[chosen]
        boxes = np.c_[anchors - sides[:, :2], anchors + sides[:, 2:]]
        points = anchors[:, None] + stride * offsets[chosen].reshape(-1, 5, 2)
        kept.append((scores[chosen, 0].astype(np.float64), boxes, points))
    scores, boxes, points = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return scores, boxes, points
