"""The error a user's data can cause; the command line prints it as one line, exit code 2."""


class DatasetError(ValueError):
    """Bad data: the message names what is wrong, where, and what to do."""
