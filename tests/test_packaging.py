"""The wheel holds our packages and nothing called `datasets`, `tools` or `recipes`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PARTS = ("memopt", "facetrain", "datasets", "tools", "recipes")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
PACKAGES = {"memopt", "facetrain", "facetrain_datasets", "facetrain_tools", "facetrain_recipes"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        shutil.copytree(
            REPOSITORY / part, source / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in FILES:
        shutil.copy(REPOSITORY / file, source)
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--quiet", "--wheel-dir", str(out), str(source)], check=True, capture_output=True
    )
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_every_source_file_under_its_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    for folder, package in (
        ("memopt", "memopt"),
        ("facetrain", "facetrain"),
        ("datasets/facetrain_datasets", "facetrain_datasets"),
        ("tools/facetrain_tools", "facetrain_tools"),
        ("recipes", "facetrain_recipes"),
    ):
        for path in (REPOSITORY / folder).rglob("*.py"):
            assert f"{package}/{path.relative_to(REPOSITORY / folder).as_posix()}" in names
    assert "facetrain/py.typed" in names


def test_wheel_installs_beside_a_package_called_datasets(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "datasets").mkdir(parents=True)
    (site / "datasets" / "__init__.py").write_text("OWNER = 'somebody else'\n")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, capture_output=True)
    program = (
        "import datasets, facetrain_datasets.loader, facetrain_recipes.lfw, facetrain_tools.cli;"
        "print(datasets.OWNER, facetrain_datasets.__file__, facetrain_recipes.lfw.__file__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    owner, datasets_file, recipe_file = run.stdout.rsplit(maxsplit=2)
    assert owner == "somebody else"
    assert Path(datasets_file).is_relative_to(site)
    assert Path(recipe_file).is_relative_to(site)
