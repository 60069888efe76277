"""Shared by all tests: one thread per process, and where the real faces lie (if they are here)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parent.parent
_SHARED = Path(os.environ.get("FACETRAIN_SHARED", REPOSITORY.parent / "shared"))


@pytest.fixture(autouse=True, scope="session")
def _single_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the real test faces; skips where it is absent."""
    folder = _SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"real test faces absent: no folder {folder}; set FACETRAIN_SHARED")
    return folder


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Folder with the reference models; skips where it is absent."""
    folder = _SHARED / "models"
    if not folder.is_dir():
        pytest.skip(f"reference models absent: no folder {folder}; set FACETRAIN_SHARED")
    return folder
