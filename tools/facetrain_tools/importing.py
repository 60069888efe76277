"""Imports that take seconds, and that Ctrl-C ends at once."""

from __future__ import annotations

import importlib
import signal
import threading
from types import ModuleType


def import_module(name: str) -> ModuleType:
    """As `importlib.import_module`; Ctrl-C meanwhile ends the process without a word.

    A KeyboardInterrupt in the middle of an import is a page of traceback, or is lost where an
    extension module is being set up.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_usual = handler is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        return importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, handler)
