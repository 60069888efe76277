"""Each check of the doctor: ok here, and what it says when the thing is missing or broken."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from facetrain.evaluation import search
from facetrain_tools import doctor


def test_this_machine_passes_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for name in doctor.CHECKS:
        assert f" {name} " in out
    assert "2 processes summed a tensor" in out
    assert "ERROR" not in out


def test_both_kinds_of_faiss_are_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "installed_faiss", lambda: ("faiss-cpu", "faiss-gpu-cu12"))
    monkeypatch.setattr(doctor, "CHECKS", {"faiss": doctor.check_faiss})
    assert doctor.main([]) == 2
    out = capsys.readouterr().out
    assert "faiss-cpu and faiss-gpu-cu12 are both installed" in out
    assert "pip uninstall -y faiss-cpu faiss-gpu-cu12, then install one" in out


def test_no_faiss_is_a_note_that_names_the_torch_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "installed_faiss", tuple)
    _break_import(monkeypatch, "faiss", "No module named 'faiss'")
    finding = doctor.check_faiss()
    assert finding.state == doctor.NOTE
    assert "the torch search backend serves" in finding.text


def test_any_faiss_that_cannot_be_imported_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "installed_faiss", lambda: ("faiss-gpu-cu12",))
    _break_import(monkeypatch, "faiss", "libcublas.so.12: cannot open shared object file")
    finding = doctor.check_faiss()
    assert finding.state == doctor.ERROR
    assert finding.advice == "pip install --force-reinstall faiss-gpu-cu12"


def test_no_horovod_is_a_note_that_says_how_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "not installed")
    finding = doctor.check_horovod()
    assert finding.state == doctor.NOTE
    assert "facetrain horovod build" in finding.advice


def test_a_horovod_of_another_torch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "0.28.1")
    _break_import(monkeypatch, "horovod.torch", "undefined symbol")
    finding = doctor.check_horovod()
    assert finding.state == doctor.ERROR
    assert "cannot be imported (undefined symbol)" in finding.text


def test_missing_libgl_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_import(monkeypatch, "cv2", "libGL.so.1: cannot open shared object file")
    finding = doctor.check_opencv()
    assert finding.state == doctor.ERROR
    assert "libgl1" in finding.advice


def test_broken_opencv_is_reinstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_import(monkeypatch, "cv2", "No module named 'cv2'")
    assert doctor.check_opencv().advice == "pip install --force-reinstall opencv-python"


def test_a_collective_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "something\nerror: no route to host\n")

    monkeypatch.setattr(subprocess, "run", fail)
    finding = doctor.check_collective()
    assert finding.state == doctor.ERROR
    assert "error: no route to host" in finding.text
    assert "GLOO_SOCKET_IFNAME" in finding.advice


def test_a_collective_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired([], 1)

    monkeypatch.setattr(subprocess, "run", hang)
    assert "no answer in" in doctor.check_collective().text


def test_little_memory_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory_bytes", lambda: 2**30)
    assert doctor.check_memory().state == doctor.NOTE
    monkeypatch.setattr(doctor, "available_memory_bytes", lambda: None)
    assert doctor.check_memory().state == doctor.NOTE


def test_available_memory_is_within_the_machines() -> None:
    available = doctor.available_memory_bytes()
    if sys.platform.startswith("linux"):
        assert available is not None
        assert 2**26 < available < 2**45


def test_flags_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--fix"]) == 2
    assert "takes no flags, got --fix" in capsys.readouterr().err


def _break_import(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    real = importlib.import_module

    def broken(module: str, package: str | None = None) -> Any:
        if module == name:
            raise ImportError(message)
        return real(module, package)

    monkeypatch.setattr(importlib, "import_module", broken)
