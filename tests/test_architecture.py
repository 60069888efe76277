"""Imports run one way: memopt <- facetrain <- recipes, tools; facetrain_datasets is a leaf."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = {
    "memopt": "memopt",
    "facetrain": "facetrain",
    "facetrain_datasets": "datasets/facetrain_datasets",
    "facetrain_recipes": "recipes",
    "facetrain_tools": "tools/facetrain_tools",
}
ALLOWED = {
    "memopt": set(),
    "facetrain_datasets": set(),
    "facetrain": {"memopt", "facetrain_datasets"},
    "facetrain_recipes": {"facetrain", "facetrain_datasets"},
    "facetrain_tools": {"facetrain", "facetrain_datasets", "facetrain_recipes"},
}
NOT_AT_IMPORT = {
    "faiss",
    "pyarrow",
    "matplotlib",
    "onnxruntime",
    "onnx",
    "tensorboard",
    "horovod",
    "triton",
    "yaml",
}
# Written in triton's language, which must be at the top; imported by a function itself.
TRITON_KERNELS = "facetrain.classifier.triton_kernel"


def _sources(package: str) -> list[Path]:
    return sorted((REPOSITORY / FOLDERS[package]).rglob("*.py"))


def _module_name(package: str, path: Path) -> str:
    parts = path.relative_to(REPOSITORY / FOLDERS[package]).with_suffix("").parts
    return ".".join([package, *(part for part in parts if part != "__init__")])


def _imports(path: Path, *, top_level_only: bool = False) -> Iterator[tuple[str, int]]:
    """Modules a file imports, `from a import b` as both a and a.b; not those for types only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = _run_at_import(tree) if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run_at_import(child)


def test_every_package_has_sources() -> None:
    assert all(len(_sources(package)) > 1 for package in FOLDERS)


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {module}"
        for package, allowed in ALLOWED.items()
        for path in _sources(package)
        for module, line in _imports(path)
        if (root := module.split(".")[0]) in FOLDERS and root not in {package, *allowed}
    ]
    assert wrong == []


def test_only_the_memory_modules_know_memopt() -> None:
    users = {
        str(path.relative_to(REPOSITORY))
        for path in _sources("facetrain")
        for module, _ in _imports(path)
        if module.split(".")[0] == "memopt" and "facetrain/planning/" not in str(path)
    }
    assert users == {
        "facetrain/memory.py",
        "facetrain/memory_plan.py",
        "facetrain/this_cluster.py",  # measures what memopt's planner takes as given
    }


def test_no_circle_of_imports() -> None:
    names = {_module_name(package, path): path for package in FOLDERS for path in _sources(package)}
    edges = {
        name: {
            module
            for module, _ in _imports(path, top_level_only=True)
            if module in names and module != name
        }
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name in done:
            return
        for target in sorted(edges[name]):
            # A package's __init__ gathers its modules; they may import their siblings through it.
            if not name.startswith(f"{target}."):
                visit(target, (*trail, name))
        done.add(name)

    for name in names:
        visit(name, ())


def test_optional_and_heavy_packages_are_imported_only_when_used() -> None:
    eager = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {module}"
        for package in FOLDERS
        for path in _sources(package)
        if _module_name(package, path) != TRITON_KERNELS
        for module, line in _imports(path, top_level_only=True)
        if module.split(".")[0] in NOT_AT_IMPORT
        or module.startswith("torch.utils.tensorboard")
        or module == TRITON_KERNELS
    ]
    assert eager == []


def test_no_package_hides_another_projects_name() -> None:
    for folder in ("datasets", "tools", "recipes"):
        assert not (REPOSITORY / folder / "__init__.py").exists()
