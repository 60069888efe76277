"""What a plan predicted, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from facetrain.memory import format_bytes


@dataclass(frozen=True)
class PlanResult:
    """What was predicted, and what came of it; bytes of all tensors of a rank.

    Attributes:
        planned_bytes: the limit.
        predicted_peak_bytes, measured_peak_bytes: of the largest step measured.
        predicted_step_us, measured_step_us: of a step, without waiting for images.
    """

    planned_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    predicted_step_us: float
    measured_step_us: float | None

    def describe(self) -> str:
        """One line for the log."""
        peak = f"{format_bytes(self.predicted_peak_bytes)} predicted"
        if self.measured_peak_bytes is not None:
            share = self.measured_peak_bytes / self.predicted_peak_bytes
            peak += f", {format_bytes(self.measured_peak_bytes)} measured ({share:.1%})"
        step = f"{self.predicted_step_us / 1e3:,.0f} ms a step predicted"
        if self.measured_step_us:
            share = self.measured_step_us / self.predicted_step_us
            step += f", {self.measured_step_us / 1e3:,.0f} ms measured ({share:.0%})"
        return f"plan for {format_bytes(self.planned_bytes)}: peak {peak}; {step}"
