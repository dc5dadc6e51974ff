"""Why a model is not loaded: trouble that trying again does not change. The message says what to change."""

from __future__ import annotations


class LoadError(Exception):
    """The checkpoint or the wish is at fault, not the worker."""


class UnservedError(LoadError):
    """A config.json names a variant that a family of ours does not have. Another definition of the model may."""


class ContextError(LoadError):
    """The context that a server has does not fit now. Memory may come free."""
