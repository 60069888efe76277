"""Flags of planning commands: their own, and the recipe's config with its defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any, TypeVar

from facetrain.config import FlatRunConfig, RunConfig
from facetrain.errors import FacetrainError
from facetrain_tools.train import find_recipe

T = TypeVar("T")


def flags_for(name: str, own: type[T], **changed: object) -> type[T]:
    """`own`, whose field `config` has the recipe's own defaults.

    Args:
        changed: fields of the config with another default here.

    Raises:
        FacetrainError: no such recipe, or one without defaults.
    """
    recipe_flags: Any = find_recipe(name).Flags
    defaults = next(
        (f.default_factory for f in dataclasses.fields(recipe_flags) if f.name == "run"), None
    )
    if not callable(defaults):
        raise FacetrainError(f"recipe {name}: its Flags have no `run` with defaults to plan for")

    def config() -> RunConfig:
        return dataclasses.replace(defaults(), **changed)

    return dataclasses.make_dataclass(
        own.__name__,
        [("config", FlatRunConfig, field(default_factory=config))],
        bases=(own,),
        frozen=True,
        namespace={"__doc__": own.__doc__},
    )
