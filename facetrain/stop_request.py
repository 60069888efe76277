"""Ctrl-C and SIGTERM as a wish to stop after the current step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """Turns Ctrl-C and SIGTERM into a wish to stop after the current step.

    Attributes:
        requested: this process was asked.
        agreed: every rank knows, and stops after this step.
    """

    def __init__(self) -> None:
        self.requested = False
        self.agreed = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        # The second one does what it always does.
        signal.signal(number, self._previous[number])
