"""Errors and warnings that are the user's to act on. A command line prints an error's message as one line and exits
non-zero.
"""


class IsentropeError(Exception):
    """Something a user can put right; the message names the thing, what was found and what to do."""


class ColumnError(IsentropeError, ValueError):
    """A batch lacks a column, or a column has the wrong shape, type or value."""


class IsentropeWarning(UserWarning):
    """A setting that runs, but cannot do what it is meant to do."""
