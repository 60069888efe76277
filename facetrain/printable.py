"""Text with names from the data in it, made fit for a terminal."""

from __future__ import annotations

_LONGEST_MESSAGE = 1200
_END = 300


def printable(text: str) -> str:
    """The text with the codes of what a terminal would obey or could not show in their place."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(message: str) -> str:
    """The message on one line; of a very long one the beginning and the end, with the advice."""
    message = printable(message)
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[: _LONGEST_MESSAGE - _END]} ... {message[-_END:]}"
