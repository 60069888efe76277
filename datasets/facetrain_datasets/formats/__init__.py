"""Readers of data sets on disk, one file each, by the name a configuration gives them."""

from __future__ import annotations

from facetrain_datasets.formats.image_folder import ImageFolder

FORMATS = {"folder": ImageFolder}

__all__ = ["FORMATS", "ImageFolder"]
