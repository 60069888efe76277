from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols import ijb
from facetrain_datasets.protocols.ijb import open_ijb

POINTS = "38.5 51.5 73.5 51.5 56 71.5 41.5 92.5 70.5 92.5"


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    files = {
        "face_tid_mid.txt": "1.jpg 10 7\n2.jpg 10 7\n3.jpg 20 8\n",
        "name_5pts_score.txt": "".join(f"{n}.jpg {POINTS} 0.{n}\n" for n in (1, 2, 3)),
        "template_pair_label.txt": "10 20 0\n20 30 1\n10 30 0\n",
        "1N_gallery_G1.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME\n10,1,x\n10,1,y\n20,2,z\n",
        "1N_gallery_G2.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME\n30,3,x\n",
        "1N_probe_mixed.csv": "SUBJECT_ID,TEMPLATE_ID\n1,40\n3,50\n",
    }
    for name, text in files.items():
        (tmp_path / f"ijbc_{name}").write_text(text)
    return tmp_path


def test_faces_with_landmarks_and_scores(meta: Path) -> None:
    faces = open_ijb(meta).faces()
    assert faces.names == ["1.jpg", "2.jpg", "3.jpg"]
    assert faces.templates.tolist() == [10, 10, 20]
    assert faces.media.tolist() == [7, 7, 8]
    assert faces.points.shape == (3, 5, 2)
    assert faces.points[1, 4].tolist() == [70.5, 92.5]
    np.testing.assert_allclose(faces.scores, [0.1, 0.2, 0.3])


@pytest.mark.parametrize("block_bytes", [3, 9, 1 << 20])
def test_pairs_come_whole_in_blocks_of_any_size(
    meta: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ijb, "_BLOCK_BYTES", block_bytes)
    blocks = list(open_ijb(meta).pairs())
    assert np.concatenate([block.left for block in blocks]).tolist() == [10, 20, 10]
    assert np.concatenate([block.right for block in blocks]).tolist() == [20, 30, 30]
    assert np.concatenate([block.is_same for block in blocks]).tolist() == [False, True, False]
    assert (len(blocks) == 1) == (block_bytes == 1 << 20)


def test_galleries_and_probes_list_each_template_once(meta: Path) -> None:
    first, second = open_ijb(meta).galleries()
    assert (first.name, second.name) == ("G1", "G2")
    assert (first.templates.tolist(), first.subjects.tolist()) == ([10, 20], [1, 2])
    probes = open_ijb(meta).probes()
    assert (probes.templates.tolist(), probes.subjects.tolist()) == ([40, 50], [1, 3])


@pytest.mark.parametrize(
    ("name", "text", "call", "message"),
    [
        ("face_tid_mid.txt", "1.jpg 10\n", "faces", r":1: expected image, template"),
        ("face_tid_mid.txt", "1.jpg 10 x\n", "faces", ":1: template, media: no finite"),
        ("face_tid_mid.txt", "1.jpg 10 7\n2.jpg 1.5 7\n3.jpg 20 8\n", "faces", ":2: .* whole"),
        ("face_tid_mid.txt", "1.jpg 10 7\n2.jpg 1 1e300\n3.jpg 20 8\n", "faces", ":2: .* whole"),
        ("face_tid_mid.txt", "", "faces", "no lines|names other images"),
        ("name_5pts_score.txt", f"1.jpg {POINTS} 0.1\n", "faces", "names other images"),
        ("name_5pts_score.txt", "1.jpg 1 2\n", "faces", ":1: expected image, ten"),
        (
            "name_5pts_score.txt",
            "".join(f"{n}.jpg {POINTS} nan\n" for n in (1, 2, 3)),
            "faces",
            ":1: ten coordinates, detector score: no finite",
        ),
        ("template_pair_label.txt", "1 2 0\n1 2\n", "pairs", r":2: expected .* found '1 2'"),
        ("template_pair_label.txt", "1 2 0\n1 2 3\n", "pairs", ":2: expected"),
        ("template_pair_label.txt", "1 x 0\n", "pairs", ":1: expected"),
        ("1N_gallery_G1.csv", "A,B\n1,2\n", "galleries", "columns A, B; expected"),
        ("1N_gallery_G1.csv", "", "galleries", "columns none"),
        ("1N_gallery_G1.csv", "TID,SID\n", "galleries", "no lines under"),
        ("1N_gallery_G1.csv", "TID,SID\n1,x\n", "galleries", ":2: no template"),
        ("1N_gallery_G1.csv", f"TID,SID\n1,{2**63}\n", "galleries", ":2: no template"),
        ("1N_gallery_G1.csv", "TID,SID\n1," + "9" * 5000, "galleries", ":2: no template"),
        ("1N_gallery_G1.csv", "TID,SID\n1," + "9" * 140_000, "galleries", ":2: field larger"),
        ("1N_gallery_G1.csv", "TID,SID\n1,2\n1,3\n", "galleries", ":3: template 1 has subjects 2"),
    ],
)
def test_bad_files_are_named(meta: Path, name: str, text: str, call: str, message: str) -> None:
    (meta / f"ijbc_{name}").write_text(text)
    with pytest.raises(DatasetError, match=message) as error:
        list(getattr(open_ijb(meta), call)())
    assert name in str(error.value) or "face_tid_mid" in str(error.value)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("name_5pts_score.txt", "faces"),
        ("template_pair_label.txt", "pairs"),
        ("1N_gallery_G*.csv", "galleries"),
        ("1N_probe_mixed.csv", "probes"),
    ],
)
def test_absent_files_are_named(meta: Path, name: str, call: str) -> None:
    for path in meta.glob(f"ijbc_{name}"):
        path.unlink()
    with pytest.raises(DatasetError, match=r"no such file|no ijbc_1N_gallery"):
        list(getattr(open_ijb(meta), call)())


def test_folder_must_hold_one_set(meta: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="found none"):
        open_ijb(tmp_path / "nowhere")
    (meta / "ijbb_face_tid_mid.txt").write_text("")
    with pytest.raises(DatasetError, match=r"found ijbb_face_tid_mid.txt, ijbc_face_tid_mid.txt"):
        open_ijb(meta)
