"""Photos to faces: what becomes of each, resume after a kill, and both detectors on real photos."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import ImageFolder
from facetrain_datasets.prepare.alignment import TEMPLATE, align, similarity
from facetrain_datasets.prepare.detectors import Face, open_detector
from facetrain_datasets.prepare.journal import Journal, Outcome, read_outcomes
from facetrain_datasets.prepare.photos import (
    JOURNAL_FILE,
    PrepareSettings,
    photo_name,
    prepare_photos,
)


class Known:
    """A detector that finds what it is told, and counts its calls."""

    def __init__(self, faces: dict[str, list[Face]]) -> None:
        self.faces = faces
        self.seen: list[str] = []
        self.stop_after: int | None = None

    def detect(self, image: np.ndarray, name: str) -> list[Face]:
        if len(self.seen) == self.stop_after:
            raise KeyboardInterrupt
        self.seen.append(name)
        return self.faces.get(name, [])

    def describe(self) -> str:
        return "known faces"


def face(scale: float = 1.0, shift: float = 0.0, score: float = 0.9) -> Face:
    points = TEMPLATE * scale + shift
    return Face(np.array([*points.min(0), *points.max(0)]), score, points)


def picture(seed: int, height: int = 120, width: int = 130) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for seed, name in enumerate(("ann/1.jpg", "ann/1.png", "ann/2.jpg", "bob/1.jpg", "bob/2.jpg")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / name), picture(seed))
    return root


def run(
    photos: Path,
    out: Path,
    detector: Known,
    settings: PrepareSettings | None = None,
    num_threads: int = 2,
) -> dict[str, Outcome]:
    path = prepare_photos(
        ImageFolder(photos), photos, out, detector, settings, num_threads=num_threads
    )
    return {outcome.photo: outcome for outcome in read_outcomes(path)}


def files(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


def test_each_photo_is_prepared_or_rejected_with_its_reason(photos: Path, tmp_path: Path) -> None:
    (photos / "bob" / "3.jpg").write_bytes(b"broken")
    cv2.imwrite(str(photos / "bob" / "4.png"), np.zeros((400, 300, 3), np.uint8))
    detector = Known(
        {
            "ann/1.jpg": [face()],
            "ann/1.png": [face(0.3), face(0.9, 4.0)],
            "ann/2.jpg": [face(), face(0.9)],
            "bob/1.jpg": [face(0.3), face(0.2)],
            "bob/2.jpg": [Face(np.zeros(4), 0.9, np.full((5, 2), 7.0))],
        }
    )
    settings = PrepareSettings(choice="reject", min_size=40, max_pixels=100_000)
    outcomes = run(photos, tmp_path / "out", detector, settings)
    assert {name: (o.file, o.reason) for name, o in outcomes.items()} == {
        "ann/1.jpg": ("ann/1.jpg", ""),
        "ann/1.png": ("ann/1-2.jpg", ""),  # the small face behind does not count
        "ann/2.jpg": ("ann/2.jpg", "several faces"),
        "bob/1.jpg": ("bob/1.jpg", "face too small"),
        "bob/2.jpg": ("bob/2.jpg", "bad landmarks"),
        "bob/3.jpg": ("bob/3.jpg", "unusable photo"),
        "bob/4.png": ("bob/4.jpg", "unusable photo"),
    }
    assert outcomes["bob/1.jpg"].detail == "34 pixels in the photo, fewer than 40"
    assert outcomes["bob/4.png"].detail.startswith("image is 300x400, more than 100,000 pixels")
    assert set(files(tmp_path / "out")) == {"ann/1.jpg", "ann/1-2.jpg", JOURNAL_FILE}
    written = cv2.imread(str(tmp_path / "out" / "ann" / "1-2.jpg"))[:, :, ::-1]
    expected = align(cv2.imread(str(photos / "ann" / "1.png"))[:, :, ::-1], face(0.9, 4.0).points)
    assert np.abs(written.astype(float) - expected).mean() < 3.0
    np.testing.assert_allclose(
        np.reshape(outcomes["ann/1.png"].points, (5, 2)), face(0.9, 4.0).points, atol=0.01
    )


def test_a_killed_run_goes_on_where_it_was(photos: Path, tmp_path: Path) -> None:
    faces = {name: [face()] for name in ("ann/1.jpg", "ann/1.png", "ann/2.jpg", "bob/2.jpg")}
    whole = Known(faces)
    run(photos, tmp_path / "whole", whole)
    killed = Known(faces)
    killed.stop_after = 3
    out = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        run(photos, out, killed, num_threads=1)
    journal = out / JOURNAL_FILE
    content = journal.read_bytes()
    assert content.count(b"\n") == 1 + 3
    journal.write_bytes(content[:-20])  # cut in the middle of a line
    resumed = Known(faces)
    run(photos, out, resumed)
    assert files(out) == files(tmp_path / "whole")
    assert len(resumed.seen) == 5 - 2
    again = Known(faces)
    run(photos, out, again)
    assert again.seen == []


def test_photos_added_later_are_prepared_and_take_no_ones_name(
    photos: Path, tmp_path: Path
) -> None:
    (photos / "ann" / "1.jpg").rename(tmp_path / "later.jpg")
    faces = {name: [face()] for name in ("ann/1.jpg", "ann/1.png")}
    out = tmp_path / "out"
    assert run(photos, out, Known(faces))["ann/1.png"].file == "ann/1.jpg"
    before = (out / "ann" / "1.jpg").read_bytes()
    (tmp_path / "later.jpg").rename(photos / "ann" / "1.jpg")
    assert run(photos, out, Known(faces))["ann/1.jpg"].file == "ann/1-2.jpg"
    assert (out / "ann" / "1.jpg").read_bytes() == before


def test_other_settings_or_a_strange_folder_are_refused(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(photos, out, Known({}))
    with pytest.raises(DatasetError, match=r"choice largest, now central"):
        run(photos, out, Known({}), PrepareSettings(choice="central"))
    with pytest.raises(DatasetError, match="not a folder of prepared faces"):
        run(photos, photos, Known({}))


def test_one_process_at_a_time_writes_to_a_folder(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(photos, out, Known({}))
    settings = json.loads((out / JOURNAL_FILE).read_text().splitlines()[0])["settings"]
    holder = Journal(out / JOURNAL_FILE, settings)
    with pytest.raises(DatasetError, match="another process"):
        run(photos, out, Known({}))
    holder.close()
    run(photos, out, Known({}))


@pytest.mark.parametrize("line", ["[]", "{", '{"photo": "a"}', '{"points": []}'])
def test_a_damaged_journal_is_named_with_its_line(photos: Path, tmp_path: Path, line: str) -> None:
    out = tmp_path / "out"
    run(photos, out, Known({}))
    with (out / JOURNAL_FILE).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DatasetError, match=r"prepare.jsonl:7"):
        run(photos, out, Known({}))


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """The JPEG with an EXIF segment of that one tag."""
    tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([orientation]) + b"\0\0" * 3
    segment = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[2:]


def test_landmarks_are_those_of_the_upright_photo(tmp_path: Path) -> None:
    upright = picture(3, height=140, width=120)
    lying = cv2.rotate(upright, cv2.ROTATE_90_COUNTERCLOCKWISE)
    for name, image, orientation in (("plain", upright, 1), ("turned", lying, 6)):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        data = cv2.imencode(".jpg", image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 100])[1]
        (folder / "1.jpg").write_bytes(with_orientation(data.tobytes(), orientation))
    out = tmp_path / "out"
    run(tmp_path / "photos", out, Known({f"{n}/1.jpg": [face()] for n in ("plain", "turned")}))
    plain, turned = (cv2.imread(str(out / n / "1.jpg")).astype(float) for n in ("plain", "turned"))
    assert np.abs(plain - turned).mean() < 3.0


@pytest.mark.parametrize("name", ["..", "a/b", ".hidden", ""])
def test_identities_that_are_no_folder_names_are_refused(tmp_path: Path, name: str) -> None:
    class Source:
        identities = (name,)
        labels = np.zeros(0, np.int64)

        def __len__(self) -> int:
            return 0

        def read(self, index: int) -> bytes:
            raise AssertionError

        def describe(self, index: int) -> str:
            raise AssertionError

    with pytest.raises(DatasetError, match="cannot be the name of a folder"):
        prepare_photos(Source(), tmp_path, tmp_path / "out", Known({}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"choice": "best"}, "largest, central, reject"),
        ({"min_size": 0}, "min_size is 0"),
        ({"quality": 101}, "quality is 101"),
        ({"image_size": 4}, "image_size is 4"),
    ],
)
def test_settings_out_of_range_are_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        PrepareSettings(**values)  # type: ignore[arg-type]


def aligned_distance(reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Distance of five landmarks in the reference's aligned face of 112x112, pixels [5]."""
    matrix = similarity(reference, TEMPLATE)
    return np.linalg.norm((found - reference) @ matrix[:, :2].T, axis=1)


def few_photos(shared_data: Path, root: Path, num_identities: int) -> Callable[[Path, Path], dict]:
    """Copies the first identities' photos; the function prepares them with a detector's file."""
    for folder in sorted(p for p in (shared_data / "lfw_photos").iterdir() if p.is_dir())[
        :num_identities
    ]:
        shutil.copytree(folder, root / folder.name)

    def prepare(detector: Path, out: Path) -> dict[str, Outcome]:
        path = prepare_photos(
            ImageFolder(root),
            root,
            out,
            open_detector(detector),
            PrepareSettings(choice="central"),
            num_threads=2,
        )
        return {outcome.photo: outcome for outcome in read_outcomes(path)}

    return prepare


@pytest.mark.parametrize("num_identities", [5, pytest.param(200, marks=pytest.mark.slow, id="all")])
def test_scrfd_and_the_landmarks_file_agree_on_real_photos(
    shared_data: Path, shared_models: Path, tmp_path: Path, num_identities: int
) -> None:
    pytest.importorskip("onnxruntime")
    prepare = few_photos(shared_data, tmp_path / "photos", num_identities)
    listed = prepare(shared_data / "lfw_photos" / "landmarks.csv", tmp_path / "csv")
    found = prepare(shared_models / "scrfd_2.5g" / "scrfd_2.5g_bnkps.onnx", tmp_path / "scrfd")
    assert not [o for o in listed.values() if o.reason]
    assert len(found) == len(listed)
    usable = [name for name, outcome in found.items() if not outcome.reason]
    assert len(usable) >= 0.99 * len(listed)
    distances = [
        aligned_distance(
            np.reshape(listed[name].points, (5, 2)), np.reshape(found[name].points, (5, 2))
        )
        for name in usable
    ]
    print(f"{len(usable)} photos, median {np.median(distances):.2f} px")
    assert np.median(distances) <= 2.0


def test_every_photo_of_the_landmarks_file_is_found(shared_data: Path) -> None:
    root = shared_data / "lfw_photos"
    photos = ImageFolder(root)
    with (root / "landmarks.csv").open() as file:
        listed = {row["file"] for row in csv.DictReader(file)}
    assert {photo_name(photos, root, index) for index in range(len(photos))} == listed
