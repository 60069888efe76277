"""The error a user's data can cause; the command line prints it as one line, exit code 2."""


class DatasetError(ValueError):
    """Bad data: the message names what is wrong, where, and what to do.

    It is one line whatever the data holds: what cannot be printed, such as a line break or a
    terminal's escape in the name of a file, is shown by its code.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))
