"""Checkpoints: any world size reads what any other wrote; a damaged file is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from facetrain.checkpoint import CheckpointFolder, TrainingState, whole_checkpoint_steps
from facetrain.distributed import Communicator, SingleCommunicator, even_counts
from facetrain.errors import FacetrainError
from memopt.live_bytes import LiveBytes
from tests.ranks import raise_first, run_ranks

NUM_ROWS = 7
ROWS = torch.arange(NUM_ROWS * 3, dtype=torch.float32).reshape(NUM_ROWS, 3)
FACTS = {"backbone": "tiny", "classes": NUM_ROWS}


def _range(communicator: Communicator) -> tuple[int, int]:
    counts = even_counts(NUM_ROWS, communicator.world_size)
    first = sum(counts[: communicator.rank])
    return first, first + counts[communicator.rank]


def _save(communicator: Communicator, path: Path, step: int = 5) -> None:
    first, end = _range(communicator)
    CheckpointFolder(path, communicator).save(
        TrainingState(
            step,
            FACTS,
            common={"weight": torch.ones(2), "skipped": 3},
            rows={"centers": ROWS[first:end], "centers/momentum": -ROWS[first:end]},
        )
    )


def _load(communicator: Communicator, path: Path) -> TrainingState:
    folder = CheckpointFolder(path, communicator)
    first, end = _range(communicator)
    rows = {key: torch.full((end - first, 3), 77.0) for key in ("centers", "centers/momentum")}
    state = folder.load(folder.steps()[-1], FACTS, {"centers": (first, end)}, rows)
    assert all(state.rows[key] is rows[key] for key in rows)
    return state


def _run(world_size: int, function: object, path: Path) -> list[TrainingState]:
    if world_size == 1:
        return [function(SingleCommunicator(), path)]  # type: ignore[operator]
    return raise_first(run_ranks(function, world_size, path))  # type: ignore[arg-type]


@pytest.mark.parametrize("written_by", [1, 2, 3])
def test_rows_are_cut_anew_for_every_world_size(written_by: int, tmp_path: Path) -> None:
    _run(written_by, _save, tmp_path)
    for read_by in (1, 2, 3):
        states = _run(read_by, _load, tmp_path)
        assert torch.equal(torch.cat([state.rows["centers"] for state in states]), ROWS)
        assert torch.equal(torch.cat([s.rows["centers/momentum"] for s in states]), -ROWS)
        assert all(state.common["skipped"] == 3 and state.step == 5 for state in states)


def _load_on_nine_ranks(path: Path) -> list[TrainingState]:
    states = []
    for rank in range(9):
        communicator = SingleCommunicator()
        communicator.rank, communicator.world_size = rank, 9
        states.append(_load(communicator, path))
    return states


def test_ranks_without_rows_read_none(tmp_path: Path) -> None:
    _save(SingleCommunicator(), tmp_path)
    states = _load_on_nine_ranks(tmp_path)
    assert [len(state.rows["centers"]) for state in states] == [1] * 7 + [0] * 2
    assert torch.equal(torch.cat([state.rows["centers"] for state in states]), ROWS)


def test_loading_takes_no_second_copy_of_the_rows(tmp_path: Path) -> None:
    stored = {"centers": torch.randn(20_000, 64), "centers/momentum": torch.randn(20_000, 64)}
    folder = CheckpointFolder(tmp_path, SingleCommunicator())
    folder.save(TrainingState(1, FACTS, {"weight": torch.ones(2)}, stored))
    rows = {key: torch.zeros(12_000, 64) for key in stored}
    with LiveBytes() as live:
        folder.load(1, FACTS, {"centers": (5_000, 17_000)}, rows)
    for key, values in stored.items():
        assert torch.equal(rows[key], values[5_000:17_000])
    # A concatenation took the bytes of `rows`, 6 MB; mapped files take none.
    assert live.peak_bytes < 10_000


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            {"centers": torch.zeros(7, 3)},
            "centers, centers/momentum, where this run has centers",
        ),
        (
            {"centers": torch.zeros(7, 3), "centers/momentum": torch.zeros(7, 3).bfloat16()},
            r"centers/momentum as float32 \(3,\) a row, where this run has .* as bfloat16 \(3,\)",
        ),
        (
            {"centers": torch.zeros(7, 4), "centers/momentum": torch.zeros(7, 3)},
            r"centers as float32 \(3,\) a row, where this run has centers as float32 \(4,\)",
        ),
        (
            {"centers": torch.zeros(9, 3), "centers/momentum": torch.zeros(9, 3)},
            "holds 7 rows of centers, where this run has 9",
        ),
    ],
)
def test_rows_of_other_settings_are_refused(
    rows: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    _save(SingleCommunicator(), tmp_path)
    folder = CheckpointFolder(tmp_path, SingleCommunicator())
    with pytest.raises(FacetrainError, match=message) as raised:
        folder.load(5, FACTS, {"centers": (0, len(rows["centers"]))}, rows)
    assert "without --resume" in str(raised.value)


def test_the_last_two_are_kept_and_a_partial_one_does_not_count(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _save(SingleCommunicator(), tmp_path, step)
    (tmp_path / ".partial-step-00000004").mkdir()
    (tmp_path / "step-00000009").mkdir()
    assert whole_checkpoint_steps(tmp_path) == [2, 3]


@pytest.mark.parametrize("name", ["common.pt", "rows-0.pt", "manifest.json"])
def test_a_file_cut_in_half_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    for step in (1, 2):
        _save(SingleCommunicator(), tmp_path, step)
    path = tmp_path / "step-00000002" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(FacetrainError) as raised:
        _load(SingleCommunicator(), tmp_path)
    message = str(raised.value)
    assert str(path) in message
    assert f"delete {path.parent} to resume from step 1" in message
    assert "\n" not in message


def test_changed_bytes_of_the_same_length_are_noticed(tmp_path: Path) -> None:
    _save(SingleCommunicator(), tmp_path)
    path = tmp_path / "step-00000005" / "common.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(FacetrainError, match=r"common\.pt has another content than was written"):
        _load(SingleCommunicator(), tmp_path)


def test_code_in_a_file_is_not_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return eval, ("__import__('pathlib').Path('executed').touch()",)

    _save(SingleCommunicator(), tmp_path)
    folder = tmp_path / "step-00000005"
    torch.save({"weight": Evil()}, folder / "common.pt")
    manifest = json.loads((folder / "manifest.json").read_text())
    data = (folder / "common.pt").read_bytes()
    import zlib

    manifest["files"]["common.pt"] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FacetrainError, match=r"common\.pt"):
        _load(SingleCommunicator(), tmp_path)
    assert not Path("executed").exists()


def test_another_runs_checkpoint_is_refused_naming_every_difference(tmp_path: Path) -> None:
    _save(SingleCommunicator(), tmp_path)
    with pytest.raises(FacetrainError) as raised:
        CheckpointFolder(tmp_path, SingleCommunicator()).load(
            5, {"backbone": "large", "classes": 9}, {"centers": (0, 9)}, {}
        )
    assert "backbone is tiny there and large now" in str(raised.value)
    assert "classes is 7 there and 9 now" in str(raised.value)


def _save_where_impossible(communicator: Communicator, path: Path) -> None:
    _save(communicator, path)


def test_a_checkpoint_that_cannot_be_written_stops_every_rank(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for result in run_ranks(_save_where_impossible, 2, blocked):
        assert isinstance(result, FacetrainError)
        assert "cannot be written" in result.args[0]


def _load_with_damage(communicator: Communicator, path: Path) -> None:
    if communicator.rank == 0:
        damaged = path / "step-00000005" / "rows-1.pt"
        damaged.write_bytes(damaged.read_bytes()[:-9])
    communicator.barrier()
    _load(communicator, path)


def test_a_file_that_only_one_rank_reads_stops_all_when_damaged(tmp_path: Path) -> None:
    _run(2, _save, tmp_path)
    for result in run_ranks(_load_with_damage, 2, tmp_path):
        assert isinstance(result, FacetrainError)
        assert "rows-1.pt" in result.args[0]


def test_facts_can_be_checked_before_anything_else_is_read(tmp_path: Path) -> None:
    _save(SingleCommunicator(), tmp_path)
    folder = CheckpointFolder(tmp_path, SingleCommunicator())
    folder.check(5, {"classes": NUM_ROWS})
    with pytest.raises(FacetrainError, match="classes is 7 there and 8 now"):
        folder.check(5, {"classes": 8})


def test_a_full_disk_is_bad_input_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        # What torch's zip writer raises.
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos")

    _save(SingleCommunicator(), tmp_path, 1)
    (tmp_path / ".partial-step-00000003").mkdir()  # a kill's
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(FacetrainError, match=r"cannot be written .*no space left"):
        _save(SingleCommunicator(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001"]


def test_a_disk_that_fills_up_on_one_rank_leaves_nothing_behind(tmp_path: Path) -> None:
    for result in run_ranks(_save_with_full_second_rank, 2, tmp_path):
        assert isinstance(result, FacetrainError)
        assert "cannot be written (No space left on device)" in result.args[0]
    assert list(tmp_path.iterdir()) == []


def _save_with_full_second_rank(communicator: Communicator, path: Path) -> None:
    # Every write to this device finds no space.
    with pytest.MonkeyPatch.context() as patch:
        if communicator.rank == 1:
            opened = Path.open
            patch.setattr(Path, "open", lambda _, mode: opened(Path("/dev/full"), mode))
        _save(communicator, path)
