"""Images per second, and the share of the time spent waiting for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

#: A run that waits for images for more of its time than this is bound by them.
INPUT_BOUND_SHARE = 0.3
_SURE_AFTER_STEPS = 20


@dataclass
class Clock:
    """Time and images since the start, without the first steps (which set things up)."""

    elapsed_s: float = 0.0
    waited_s: float = 0.0
    num_images: int = 0
    num_steps: int = 0
    told: bool = False

    def add(self, elapsed_s: float, waited_s: float, num_images: int, *, counted: bool) -> None:
        if counted:
            self.elapsed_s += elapsed_s
            self.waited_s += waited_s
            self.num_images += num_images
            self.num_steps += 1

    def input_verdict(self, *, last: bool) -> str | None:
        """A line that says that images come too slowly: once, when it is sure, at the `last` step.

        Returns:
            The line, or None where there is nothing to say, or it has been said.
        """
        sure = last or self.num_steps >= _SURE_AFTER_STEPS
        if self.told or not sure or self.input_share <= INPUT_BOUND_SHARE:
            return None
        self.told = True
        return (
            f"input-bound: {self.input_share:.0%} of the time goes to waiting for images; raise "
            "--num-workers (facetrain bench loader shows what takes the time)"
        )

    @property
    def images_per_s(self) -> float:
        return self.num_images / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def input_share(self) -> float:
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0


@dataclass
class Interval:
    """Steps since the last line of metrics; skipped ones have no loss."""

    losses: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    num_images: int = 0

    def add(self, loss: float, elapsed_s: float, waited_s: float, num_images: int) -> None:
        if math.isfinite(loss):
            self.losses.append(loss)
        self.elapsed_s += elapsed_s
        self.waited_s += waited_s
        self.num_images += num_images

    @property
    def input_share(self) -> float:
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def mean_loss(self) -> float:
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    @property
    def images_per_s(self) -> float:
        return self.num_images / self.elapsed_s if self.elapsed_s else 0.0
