"""Ctrl-C while modules are imported, which takes seconds."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_end_at_once() -> Iterator[None]:
    """Inside, Ctrl-C ends the process without a word.

    A KeyboardInterrupt in the middle of an import is a page of traceback, or is lost where an
    extension module is being set up.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_usual = handler is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
