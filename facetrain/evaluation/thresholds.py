"""Decision thresholds per FAR, in a file that evaluation and export read.

    Thresholds.of(report, {"model": "model.pt", ...}).save(Path("thresholds.json"))
    Thresholds.load(Path("thresholds.json")).cosine(1e-4)

A threshold is a cosine of unit embeddings: accept at or above it. The same as a squared L2 distance
is d = 2 - 2 cos, accepted at or below it; the file has both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import OperatingPoint, RateReport
from facetrain.report.page import write_atomically

FORMAT, VERSION = "facetrain-thresholds", 1
#: Facts that must be the same where a threshold is made and where it is used.
_DECISIVE = ("preprocessing", "flip")


@dataclass(frozen=True)
class AppliedThreshold:
    """A fixed threshold on another set: what it accepts there.

    Attributes:
        far_target: that the threshold was made for.
        cosine: the threshold.
        far: share of the impostor pairs accepted.
        tar: share of the genuine pairs accepted.
    """

    far_target: float
    cosine: float
    far: float
    tar: float


@dataclass(frozen=True)
class Thresholds:
    """Thresholds measured on one set, for the FARs that it could measure.

    Attributes:
        points: by ascending FAR target; FAR, TAR and threshold are those of the set.
        num_genuine: pairs of the set.
        num_impostor: pairs of the set.
        measured_with: model, preprocessing, flip, data, ...
    """

    points: tuple[OperatingPoint, ...]
    num_genuine: int
    num_impostor: int
    measured_with: Mapping[str, str]

    @classmethod
    def of(cls, report: RateReport, measured_with: Mapping[str, str]) -> Thresholds:
        """The measurable operating points of a report.

        Raises:
            FacetrainError: none of them could be measured, or none accepts any genuine pair.
        """
        points = [point for point in report.tar_at_far if point.threshold is not None]
        if not points:
            raise FacetrainError(
                f"thresholds: no target FAR can be measured with {report.roc.num_impostor} "
                "impostor pairs; calibrate on more images or for higher FARs"
            )
        if not any(point.tar for point in points):
            raise FacetrainError(
                "thresholds: none would accept any genuine pair; the embeddings tell nobody apart, "
                "the model is broken or still untrained"
            )
        return cls(
            tuple(sorted(points, key=lambda point: point.far_target)),
            report.roc.num_genuine,
            report.roc.num_impostor,
            dict(measured_with),
        )

    def cosine(self, far_target: float) -> float:
        """The threshold for a FAR: accept at or above it.

        Raises:
            FacetrainError: there is none; the message lists those there are.
        """
        for point in self.points:
            if math.isclose(point.far_target, far_target) and point.threshold is not None:
                return point.threshold
        known = ", ".join(f"{point.far_target:g}" for point in self.points)
        raise FacetrainError(f"no threshold for FAR {far_target:g}; there are those for {known}")

    def apply(self, genuine: np.ndarray, impostor: np.ndarray) -> list[AppliedThreshold]:
        """What each threshold accepts of other scores, cosines [G] and [I]."""
        return [
            AppliedThreshold(
                point.far_target,
                point.threshold,
                far=float(np.mean(impostor >= point.threshold)),
                tar=float(np.mean(genuine >= point.threshold)),
            )
            for point in self.points
            if point.threshold is not None
        ]

    def check_usable_with(self, facts: Mapping[str, str], path: Path) -> None:
        """Refuses embeddings that were made in another way than those of the calibration.

        Raises:
            FacetrainError: naming what differs, where both sides tell.
        """
        for name in _DECISIVE:
            ours, theirs = self.measured_with.get(name), facts.get(name)
            if ours is not None and theirs is not None and ours != theirs:
                raise FacetrainError(
                    f"thresholds {path}: measured with {name} {ours!r}, used with {theirs!r}; "
                    "calibrate for this, or use the same"
                )

    def origin(self) -> str:
        """Which model they were measured with, and on what, as far as it is known."""
        model = self.measured_with.get("model", self.measured_with.get("features", "?"))
        on = self.measured_with.get("data", self.measured_with.get("pairs", "?"))
        return f"measured with {model} on {on}"

    def save(self, path: Path) -> None:
        """Writes the file; readers see the old one or the whole new one."""
        write_atomically(path, self.to_json() + "\n")

    def to_json(self) -> str:
        """What `save` writes."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "num_genuine": self.num_genuine,
            "num_impostor": self.num_impostor,
            "measured_with": dict(self.measured_with),
            "thresholds": [
                {
                    "far_target": point.far_target,
                    "cosine": point.threshold,
                    "squared_l2": 2.0 - 2.0 * point.threshold,
                    "far": point.far,
                    "tar": point.tar,
                }
                for point in self.points
                if point.threshold is not None
            ],
        }
        return json.dumps(content, indent=1)

    @classmethod
    def load(cls, path: Path) -> Thresholds:
        """Reads what `save` wrote.

        Raises:
            FacetrainError: absent, or not such a file.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FacetrainError(
                f"thresholds {path}: no such file; `facetrain eval calibrate` writes one"
            ) from None
        except (OSError, ValueError) as error:
            raise FacetrainError(f"thresholds {path}: not readable ({error})") from None
        return cls.from_json(text, path)

    @classmethod
    def from_json(cls, text: str, path: Path) -> Thresholds:
        """Reads what `to_json` gave; `path` is where it stood.

        Raises:
            FacetrainError: it is something else.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FacetrainError(f"thresholds {path}: not readable ({error})") from None
        try:
            return cls._of_content(content)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FacetrainError(
                f"thresholds {path}: not a {FORMAT} file of version {VERSION} ({error!r}); write "
                "it with `facetrain eval calibrate`"
            ) from None

    @classmethod
    def _of_content(cls, content: Any) -> Thresholds:
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
        points = []
        for entry in content["thresholds"]:
            values = [float(entry[name]) for name in ("far_target", "far", "tar", "cosine")]
            if not all(map(math.isfinite, values)) or not 0.0 < values[0] <= 1.0:
                raise ValueError(f"threshold {entry}")
            points.append(OperatingPoint(*values))
        if not points:
            raise ValueError("no thresholds in it")
        facts = {str(name): str(value) for name, value in content["measured_with"].items()}
        return cls(tuple(points), int(content["num_genuine"]), int(content["num_impostor"]), facts)
