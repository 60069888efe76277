"""The tile kernel: under triton's interpreter, compiled for GPUs that are not here, and refused.

The interpreter is chosen by the environment before triton is imported, so what runs under it is a
pytest of its own, of interpreted_triton_tile.py.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from facetrain.classifier.triton_tile import unavailable

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def _run(arguments: list[str], **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE.parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@needs_triton
@pytest.mark.slow
def test_kernel_under_the_interpreter() -> None:
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    _run([*arguments, str(HERE / "interpreted_triton_tile.py")], TRITON_INTERPRET="1")


@pytest.mark.slow
@needs_triton
def test_kernel_compiles_for_a100_and_h100(tmp_path: Path) -> None:
    _run([str(HERE / "compile_triton_tile.py")], TRITON_CACHE_DIR=str(tmp_path))


def test_a_cpu_without_the_interpreter_is_refused_in_words() -> None:
    assert unavailable(torch.device("cpu")) == "triton kernels run on CUDA devices, not on cpu"
