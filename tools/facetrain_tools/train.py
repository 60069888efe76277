"""`facetrain train RECIPE [flags]`: run a recipe from facetrain_recipes, or any recipe script."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from facetrain.command import one_line_errors, run_recipe
from facetrain.errors import FacetrainError


def main(arguments: Sequence[str]) -> int:
    """Run the recipe named first; the rest are its flags."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *flags = arguments

    def run() -> int:
        recipe = find_recipe(name)
        return run_recipe(
            recipe.main,
            recipe.Flags,
            str(recipe.__file__),
            flags,
            f"facetrain train {name}",
            [sys.executable, "-m", "facetrain_tools.cli", "train", name],
        )

    return one_line_errors(run)


def find_recipe(name: str) -> ModuleType:
    """The recipe of that name, or in that file.

    Raises:
        FacetrainError: no such recipe, or a script without `main` and `Flags`.
    """
    if name in recipe_names():
        return importlib.import_module(f"facetrain_recipes.{name}")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise FacetrainError(
            f"recipe {name!r}: not one of {', '.join(recipe_names())}, nor a Python file"
        )
    # A name of its own, lest random.py take the place of the module random.
    module_name = f"facetrain_recipe_{path.stem}"
    specification = importlib.util.spec_from_file_location(module_name, path)
    assert specification is not None
    assert specification.loader is not None
    recipe = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = recipe
    specification.loader.exec_module(recipe)
    missing = [wanted for wanted in ("main", "Flags") if not hasattr(recipe, wanted)]
    if missing:
        raise FacetrainError(
            f"recipe {name}: has no {' and no '.join(missing)}; copy the form of recipes/lfw.py"
        )
    return recipe


def recipe_names() -> list[str]:
    """Recipes that come with the toolkit."""
    facetrain_recipes = importlib.import_module("facetrain_recipes")
    return sorted(module.name for module in pkgutil.iter_modules(facetrain_recipes.__path__))


def usage() -> str:
    lines = []
    for name in recipe_names():
        recipe = importlib.import_module(f"facetrain_recipes.{name}")
        lines.append(f"  {name:<12}{(recipe.__doc__ or '').strip().splitlines()[0]}")
    return "\n".join(
        [
            "usage: facetrain train RECIPE [flags] (facetrain train RECIPE --help lists them)",
            "",
            *lines,
            "  FILE.py     a recipe of your own",
        ]
    )
