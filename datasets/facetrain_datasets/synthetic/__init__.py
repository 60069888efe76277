"""Faces rendered by code: a data set for everyone, seeded, with nothing to download."""

from __future__ import annotations

from facetrain_datasets.synthetic.render import FaceRenderer, render_face
from facetrain_datasets.synthetic.write import write_synthetic_faces

__all__ = ["FaceRenderer", "render_face", "write_synthetic_faces"]
