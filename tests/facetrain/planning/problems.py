"""Problems small enough to plan in a test."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from facetrain.config import HeadConfig, ModelConfig, RunConfig
from facetrain.planning.layers import BackboneModel
from facetrain.planning.problem import Problem, named_problem
from facetrain.planning.step import Planner

CONFIG = RunConfig(
    model=ModelConfig(backbone="mobilefacenet_tiny", embedding_size=128),
    head=HeadConfig(margin="cosface"),
)


def problem(
    num_devices: int = 16, num_classes: int = 100_000, rows: int = 8, **more: Any
) -> Problem:
    """Of V100s, with their memory."""
    made = named_problem(CONFIG, "v100-32g", num_devices, num_classes, rows=rows)
    return replace(made, **more)


@lru_cache(maxsize=1)
def backbone() -> BackboneModel:
    """Traced once for all tests."""
    return BackboneModel(problem())


def planner(of: Problem) -> Planner:
    return Planner(of, backbone())
