"""Flags of planning commands: their own, and the recipe's config with its defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any, TypeVar

from facetrain.config import FlatRunConfig
from facetrain.errors import FacetrainError
from facetrain_tools.train import find_recipe

T = TypeVar("T")


def flags_for(name: str, own: type[T]) -> type[T]:
    """`own`, whose field `config` has the recipe's own defaults.

    Raises:
        FacetrainError: no such recipe, or one without defaults.
    """
    recipe_flags: Any = find_recipe(name).Flags
    defaults = next(
        (f.default_factory for f in dataclasses.fields(recipe_flags) if f.name == "run"), None
    )
    if not callable(defaults):
        raise FacetrainError(f"recipe {name}: its Flags have no `run` with defaults to plan for")
    return dataclasses.make_dataclass(
        own.__name__,
        [("config", FlatRunConfig, field(default_factory=defaults))],
        bases=(own,),
        frozen=True,
        namespace={"__doc__": own.__doc__},
    )
