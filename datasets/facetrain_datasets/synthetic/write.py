"""Writes a synthetic identity set as an image folder of JPEGs.

    write_synthetic_faces("faces", num_identities=100, images_per_identity=20, seed=0)

Identity n of a seed is the same person in whatever call draws it, so processes can share the work
by ranges, and a held-out set is a range that training does not use.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.synthetic.render import FaceRenderer

MANIFEST = "synthetic_faces.json"
# Raised with every change of what the renderer draws, so that no folder mixes two of them.
RENDERER_VERSION = 1
_IMAGE_SIZE = 112
_JPEG_QUALITY = (40, 96)
_STALE_AFTER_S = 3600.0


def write_synthetic_faces(
    out: str | os.PathLike[str],
    *,
    num_identities: int,
    images_per_identity: int,
    seed: int,
    first_identity: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Draws identities `first_identity ..` into `out/person_NNNNN/NNNN.jpg`, 112x112.

    An identity is drawn under a hidden name and renamed when complete; those already there are
    left as they are. So an interrupted call is resumed by calling again, and several processes may
    write to one folder.

    Args:
        out: folder to write to, made where absent.
        num_identities: how many to draw.
        images_per_identity: photos of each.
        seed: non-negative, names the set.
        first_identity: number of the first one.
        progress: called with (images done, images in all) after each identity.

    Returns:
        The number of images drawn by this call.

    Raises:
        DatasetError: a number out of its range, a folder that cannot be written, or one that holds
            faces drawn with other settings.
    """
    for name, value, lowest in (
        ("num_identities", num_identities, 1),
        ("images_per_identity", images_per_identity, 1),
        ("seed", seed, 0),
        ("first_identity", first_identity, 0),
    ):
        if value < lowest:
            raise DatasetError(f"{name} is {value}; allowed: {lowest} or more")
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale_parts(folder)
        _claim(folder, seed, images_per_identity)
        num_drawn = 0
        for done, number in enumerate(range(first_identity, first_identity + num_identities), 1):
            person = folder / f"person_{number:05d}"
            if not person.exists():
                _write_person(person, seed, number, images_per_identity)
                num_drawn += images_per_identity
            if progress is not None:
                progress(done * images_per_identity, num_identities * images_per_identity)
    except OSError as error:
        raise DatasetError(
            f"{folder}: synthetic faces cannot be written ({error}); choose another folder"
        ) from error
    return num_drawn


def _remove_stale_parts(folder: Path) -> None:
    """Removes what killed calls left of identities they were drawing."""
    latest = time.time() - _STALE_AFTER_S
    for part in folder.glob(".person_*"):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if part.stat().st_mtime < latest:
                shutil.rmtree(part, ignore_errors=True)


def _claim(folder: Path, seed: int, images_per_identity: int) -> None:
    """Notes what the folder holds, or checks that it holds what this call would draw."""
    manifest = folder / MANIFEST
    ours = {
        "renderer_version": RENDERER_VERSION,
        "seed": seed,
        "images_per_identity": images_per_identity,
    }
    if not manifest.exists():
        if any(not entry.name.startswith(".") for entry in folder.iterdir()):
            # Another process may have claimed the folder just now; then the manifest is here.
            if not manifest.exists():
                raise DatasetError(
                    f"{folder}: not empty and without {MANIFEST}, so not a folder of synthetic "
                    f"faces; choose another folder"
                )
        else:
            handle, name = tempfile.mkstemp(prefix=".manifest-", dir=folder)
            with os.fdopen(handle, "w") as file:
                json.dump(ours, file, indent=1)
            Path(name).chmod(0o644)  # mkstemp's 0o600 would hide it from other users
            Path(name).replace(manifest)
    try:
        theirs = json.loads(manifest.read_text())
    except ValueError:
        theirs = None
    if theirs != ours:
        raise DatasetError(
            f"{manifest}: the folder holds faces drawn with {theirs}, asked for {ours}; "
            f"delete the folder or choose another"
        )


def _write_person(person: Path, seed: int, number: int, num_images: int) -> None:
    identity_seed = int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0])
    renderer = FaceRenderer(identity_seed, _IMAGE_SIZE)
    qualities = np.random.default_rng((seed, number)).integers(*_JPEG_QUALITY, num_images).tolist()
    part = Path(tempfile.mkdtemp(prefix=f".{person.name}-", dir=person.parent))
    try:
        part.chmod(0o755)  # mkdtemp's 0o700 would hide the set from other users
        for sample, quality in enumerate(qualities):
            image = cv2.cvtColor(renderer.render(sample), cv2.COLOR_RGB2BGR)
            encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
            (part / f"{sample:04d}.jpg").write_bytes(encoded.tobytes())
        try:
            part.rename(person)
        except OSError:
            # Another process finished the same person first; its images equal ours.
            if not person.is_dir():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
