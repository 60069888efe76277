"""The faiss module: whether it is here, and here once."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from facetrain.errors import FacetrainError

#: Distributions that install a module named faiss; a second one overwrites the first.
FAISS_DISTRIBUTIONS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12")


def installed_faiss() -> tuple[str, ...]:
    """Names of the installed distributions that bring faiss; more than one is a broken install."""
    found = []
    for name in FAISS_DISTRIBUTIONS:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(name)
    return tuple(found)


def check_faiss() -> None:
    """Refuses an environment with two faiss distributions.

    Raises:
        FacetrainError: with the commands that mend it.
    """
    found = installed_faiss()
    if len(found) > 1:
        raise FacetrainError(
            f"{' and '.join(found)} are both installed: they share the module faiss, so one has "
            f"overwritten the other; pip uninstall -y {' '.join(found)}, then install one of them"
        )


def import_faiss() -> Any:
    """The faiss module.

    Raises:
        FacetrainError: absent or broken, or two distributions of it are installed.
    """
    check_faiss()
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise FacetrainError(
            f"search backend faiss: {error}; pip install 'facetrain[cpu]' or 'facetrain[gpu]', or "
            "choose torch"
        ) from error


def gpu_resources(faiss: Any) -> Any:
    """What an index on the first GPU needs; None where faiss has no GPU."""
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() == 0:
        return None
    return faiss.StandardGpuResources()
