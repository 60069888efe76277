"""SCRFD's outputs decoded one anchor at a time; YuNet and SCRFD by networks of known outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.prepare.detectors import Detector, Face, open_detector
from facetrain_datasets.prepare.detectors.face import detect_scaled
from facetrain_datasets.prepare.detectors.scrfd import decode
from facetrain_datasets.prepare.detectors.yunet import YunetDetector

HEADER = (
    "file,score,x1,y1,x2,y2,left_eye_x,left_eye_y,right_eye_x,right_eye_y,nose_x,nose_y,"
    "left_mouth_x,left_mouth_y,right_mouth_x,right_mouth_y\n"
)
PHOTO = np.zeros((50, 60, 3), np.uint8)


def slow_decode(
    levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]], width: int, per_cell: int, least: float
) -> list[tuple[float, ...]]:
    found = []
    for level, (scores, boxes, points) in enumerate(levels):
        stride = 8 * 2**level
        columns = -(-width // stride)
        for number in range(len(scores)):
            if scores[number, 0] < least:
                continue
            cell = number // per_cell
            x, y = cell % columns * stride, cell // columns * stride
            left, top, right, bottom = boxes[number] * stride
            box = (x - left, y - top, x + right, y + bottom)
            places = [
                (x + points[number, 2 * k] * stride, y + points[number, 2 * k + 1] * stride)
                for k in range(5)
            ]
            found.append((scores[number, 0], *box, *np.ravel(places)))
    return found


@pytest.mark.parametrize(("num_levels", "per_cell"), [(3, 2), (3, 1), (5, 1)])
@pytest.mark.parametrize("with_batch_axis", [False, True])
def test_scrfd_outputs_are_decoded_in_whatever_order_they_come(
    num_levels: int, per_cell: int, with_batch_axis: bool
) -> None:
    rng = np.random.default_rng(0)
    height, width = 96, 200  # no multiple of the larger strides
    levels = []
    for level in range(num_levels):
        stride = 8 * 2**level
        num = per_cell * -(-height // stride) * -(-width // stride)
        levels.append((rng.random((num, 1)), rng.random((num, 4)), rng.normal(size=(num, 10))))
    outputs = [array[None] if with_batch_axis else array for level in levels for array in level]
    outputs = [outputs[i] for i in rng.permutation(len(outputs))]
    scores, boxes, points = decode(outputs, height, width, 0.7)
    found = np.c_[scores, boxes, points.reshape(-1, 10)]
    np.testing.assert_allclose(found, slow_decode(levels, width, per_cell, 0.7))


@pytest.mark.parametrize(
    "shapes",
    [
        [(16, 1), (16, 4)],
        [(16, 1), (16, 4), (16, 8)],
        [(15, 1), (15, 4), (15, 10)],
        [(16, 1), (16, 4), (16, 10), (4, 1)],
        [(1, 128)],
        [],
    ],
)
def test_outputs_of_another_network_are_refused(shapes: list[tuple[int, int]]) -> None:
    with pytest.raises(DatasetError, match="not SCRFD's"):
        decode([np.zeros(shape) for shape in shapes], 32, 32, 0.5)


def scrfd_file(path: Path, hot: int, height: int | str = "h", width: int | str = "w") -> None:
    """A network for 64x64 inputs that sees one face, at anchor `hot` of stride 8."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes, outputs = [], []
    for stride in (8, 16, 32):
        num = (64 // stride) ** 2
        for columns, value in ((1, 0.0), (4, 2.0), (10, 0.5)):
            array = np.full((num, columns), value, np.float32)
            if stride == 8 and columns == 1:
                array[hot] = 0.9
            name = f"{stride}_{columns}"
            constant = numpy_helper.from_array(array)
            nodes.append(helper.make_node("Constant", [], [name], value=constant))
            outputs.append(
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [num, columns])
            )
    nodes.append(helper.make_node("Shape", ["image"], ["unused"]))
    image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 3, height, width])
    graph = helper.make_graph(nodes, "scrfd", [image], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))


def test_faces_are_in_pixels_of_the_photo(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    scrfd_file(tmp_path / "d.onnx", hot=3 * 8 + 2, height=64, width=64)
    detector = open_detector(tmp_path / "d.onnx")
    # A photo of 128x64 is halved; the anchor lies at (16, 24) of the input, (32, 48) of the photo.
    (face,) = detector.detect(np.zeros((64, 128, 3), np.uint8), "photo")
    np.testing.assert_allclose(face.box, (32 - 32, 48 - 32, 32 + 32, 48 + 32))
    np.testing.assert_allclose(face.points, np.full((5, 2), (32 + 8, 48 + 8)))
    assert face.score == pytest.approx(0.9)
    assert open_detector(tmp_path / "d.onnx", min_score=0.95).detect(PHOTO, "") == []


def test_yunet_is_found_by_its_outputs_and_run_by_opencv(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes, outputs = [], []
    for stride in (8, 16, 32):
        num = (64 // stride) ** 2
        for name, columns in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10)):
            weights = np.zeros((1, num, columns), np.float32)
            if stride == 8:
                # One face at row 3, column 2: score sqrt(cls obj), size e^2 strides.
                weights[0, 3 * 8 + 2] = {1: 0.81, 4: (0.0, 0.0, 2.0, 2.0), 10: 0.5}[columns]
            key = f"{name}_{stride}"
            initial = numpy_helper.from_array(weights)
            nodes += [
                helper.make_node("Constant", [], [f"{key}_known"], value=initial),
                helper.make_node("Add", ["nothing", f"{key}_known"], [key]),
            ]
            outputs.append(
                helper.make_tensor_value_info(key, onnx.TensorProto.FLOAT, [1, num, columns])
            )
    zero = numpy_helper.from_array(np.zeros((1, 1, 1), np.float32))
    sums = [
        helper.make_node("ReduceMean", ["input"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value=zero),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
    ]
    image = helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, [1, 3, 64, 64])
    graph = helper.make_graph([*sums, *nodes], "yunet", [image], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(tmp_path / "y.onnx"))
    detector = open_detector(tmp_path / "y.onnx")
    assert isinstance(detector, YunetDetector)
    (face,) = detector.detect(np.zeros((64, 64, 3), np.uint8), "")
    side = 8 * np.exp(2.0)
    np.testing.assert_allclose(
        face.box, (16 - side / 2, 24 - side / 2, 16 + side / 2, 24 + side / 2), rtol=1e-4
    )
    np.testing.assert_allclose(face.points, np.full((5, 2), (20.0, 28.0)), rtol=1e-4)
    assert face.score == pytest.approx(0.81, abs=1e-4)


@pytest.mark.parametrize(
    ("height", "width", "sizes"),
    [
        (2000, 4000, [(320, 640), (128, 256)]),
        (300, 200, [(300, 200), (256, 171)]),
        (250, 250, [(250, 250)]),
        (1, 5000, [(1, 640), (1, 256)]),
    ],
)
def test_photos_are_tried_smaller_where_nothing_is_found_and_never_enlarged(
    height: int, width: int, sizes: list[tuple[int, int]]
) -> None:
    tried = []

    def detect(image: np.ndarray) -> list[Face]:
        tried.append(image.shape[:2])
        rows, columns = image.shape[:2]
        corner = np.full((5, 2), (columns, rows), np.float64)
        box = np.array([0.0, 0.0, columns, rows])
        return [Face(box, 0.9, corner)] if len(tried) == len(sizes) else []

    (face,) = detect_scaled(np.zeros((height, width, 3), np.uint8), detect)
    assert tried == sizes
    np.testing.assert_allclose(face.box, (0, 0, width, height))
    np.testing.assert_allclose(face.points, np.full((5, 2), (width, height)))
    assert detect_scaled(np.zeros((height, width, 3), np.uint8), lambda _: []) == []


@pytest.fixture
def landmarks(tmp_path: Path) -> Callable[[str], Detector]:
    def write(text: str) -> Detector:
        (tmp_path / "landmarks.csv").write_text(text)
        return open_detector(tmp_path / "landmarks.csv")

    return write


def test_landmarks_file_gives_every_face_of_a_photo(
    landmarks: Callable[[str], Detector],
) -> None:
    detector = landmarks(
        HEADER
        + "a/1.jpg,0.6,0,0,9,9,1,2,3,4,5,6,7,8,9,10\n"
        + "a/2.jpg,0.9,0,0,9,9,1,2,3,4,5,6,7,8,9,10\n"
        + "a/1.jpg,0.8,1,2,3,4,1,2,3,4,5,6,7,8,9,11\n"
        + "a/1.jpg,0.3,1,2,3,4,1,2,3,4,5,6,7,8,9,11\n"
    )
    best, second = detector.detect(PHOTO, "./a/1.jpg")
    assert (best.score, second.score) == (0.8, 0.6)
    np.testing.assert_array_equal(best.box, (1, 2, 3, 4))
    np.testing.assert_array_equal(best.points, [(1, 2), (3, 4), (5, 6), (7, 8), (9, 11)])
    assert detector.detect(PHOTO, "1.jpg") == []


def test_landmarks_without_box_and_score(landmarks: Callable[[str], Detector]) -> None:
    header = HEADER.replace("score,x1,y1,x2,y2,", "")
    (face,) = landmarks(f"{header}p.png,1,2,3,4,5,6,7,8,9,10\n").detect(PHOTO, "p.png")
    np.testing.assert_array_equal(face.box, (1, 2, 9, 10))
    assert face.score == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file,score\n", "no column left_eye_x"),
        ("", "no column file"),
        (HEADER + "a,0.5,0,0,9,9,1,2,3,4,5,6,7,8,nine,10\n", "landmarks.csv:2: right_mouth_x"),
        (HEADER + "a,0.5,0,0,9,9,1,2\n", "landmarks.csv:2: right_eye_x"),
        (
            ",".join([*HEADER.strip().split(",")[1:], "file"]) + "\n" + "1," * 14 + "1\n",
            "2: no photo",
        ),
        (HEADER + "a,0.5,0,0,9,9,1,2,3,4,5,6,7,8,nan,10\n", "landmarks.csv:2"),
    ],
)
def test_bad_landmarks_file_is_named(
    landmarks: Callable[[str], Detector], text: str, said: str
) -> None:
    with pytest.raises(DatasetError, match=said):
        landmarks(text)


def test_unusable_detector_files_are_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    (tmp_path / "yunet.onnx").write_bytes(b"cls_8 obj_8 bbox_8 kps_8")
    for name, kind, said in (
        ("absent.onnx", "auto", "no such file"),
        ("broken.onnx", "auto", "not a usable ONNX detector"),
        ("yunet.onnx", "auto", "cannot run it as YuNet"),
        ("broken.onnx", "retina", "choose one of auto, onnx, yunet, csv"),
    ):
        with pytest.raises(DatasetError, match=said) as error:
            open_detector(tmp_path / name, kind)
        assert "\n" not in str(error.value)


def test_an_embedding_model_is_no_detector(shared_models: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(DatasetError, match=r"mobilefacenet\.onnx"):
        open_detector(shared_models / "mobilefacenet" / "mobilefacenet.onnx")
