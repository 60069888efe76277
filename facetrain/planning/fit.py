"""The largest batch, and the most identities, for which a plan fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from facetrain.errors import FacetrainError
from facetrain.planning.layers import BackboneModel
from facetrain.planning.problem import Problem
from facetrain.planning.step import Planner

FITS = ("batch", "ids")
_PRECISION = 0.01
_LEAST_ROWS = 2  # BatchNorm has no statistics of one
_MOST = 2**40


def fit(what: str, problem: Problem, backbone: BackboneModel | None = None) -> Problem:
    """The problem with the most images a device, or identities, that fit, within 1 %.

    Args:
        what: of `FITS`.
        backbone: of the problem, if it has been traced.

    Raises:
        FacetrainError: not even the least fits.
    """
    traced = backbone or BackboneModel(problem)

    def with_number(number: int) -> Problem:
        if what == "batch":
            return replace(problem, rows=number)
        return replace(problem, num_classes=number)

    least = _LEAST_ROWS * problem.config.optim.micro_batches if what == "batch" else 1
    number = largest(lambda n: Planner(with_number(n), traced).fits(), least)
    if number == 0:
        one = f"a batch of {least} images a device" if what == "batch" else "one identity"
        raise FacetrainError(
            f"--fit {what}: not even {one} fits; use more or larger devices, or a smaller backbone"
        )
    return with_number(number)


def largest(fits: Callable[[int], bool], least: int) -> int:
    """The largest number that fits, within 1 %; 0 where `least` does not."""
    if not fits(least):
        return 0
    found, too_large = least, 2 * least
    while fits(too_large):
        found, too_large = too_large, 2 * too_large
        if found > _MOST:
            return found
    while too_large - found > max(1, _PRECISION * found):
        middle = (found + too_large) // 2
        found, too_large = (middle, too_large) if fits(middle) else (found, middle)
    return found
