"""Typed reading of a config.json: each field by name, with what it got and what is allowed when it does not fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pelton.loading.error import LoadError, UnservedError


class Fields:
    """The fields of one JSON object. `None` counts as absent, as transformers writes it.

    `called`: what some fields are called there, by the names that they are asked for by.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "", called: Mapping[str, str] | None = None) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._nulls = values.keys() - self._values.keys()
        self._where = where
        self._own = called or {}

    def __contains__(self, name: str) -> bool:
        return self.called(name) in self._values

    def called(self, name: str) -> str:
        """What config.json calls it."""
        return self._own.get(name, name)

    def usual(self, **values: Any) -> Fields:
        """With these where a field is absent: what a family's absence means."""
        absent = {self.called(name): value for name, value in values.items() if name not in self}
        return self._with({**self._values, **absent})

    def without(self, *names: str) -> Fields:
        """As if these were absent: what a family's models do not look at."""
        own = {self.called(name) for name in names}
        return self._with({name: value for name, value in self._values.items() if name not in own})

    def alone(self, **values: Any) -> Fields:
        """With these values and no others."""
        return Fields({self.called(name): value for name, value in values.items()}, self._where, self._own)

    def _with(self, values: Mapping[str, Any]) -> Fields:
        nulls = dict.fromkeys(self._nulls - values.keys())
        return Fields({**values, **nulls}, self._where, self._own)

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number, `least` or more."""
        value = self._get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or value < least:
            raise self._unfit(name, value, f"a whole number from {least}")
        return value

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        """A number greater than `above`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= sys.float_info.max:
            raise self._unfit(name, value, f"a number above {above:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._unfit(name, value, "true or false")
        return value

    def word(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of `allowed`."""
        value = self._get(name, default)
        if value not in allowed:
            unfit = self._unfit(name, value, " or ".join(allowed))
            raise UnservedError(*unfit.args) if isinstance(value, str) else unfit
        return str(value)

    def object(self, name: str) -> Fields:
        """A JSON object; empty if absent."""
        value = self._values.get(self.called(name), {})
        if not isinstance(value, dict):
            raise self._unfit(name, value, "an object")
        return Fields(value, f"{self._where}{self.called(name)}.")

    def names(self) -> list[str]:
        """Of all fields that are there."""
        return list(self._values)

    def count_or_null(self, name: str, default: int | None) -> int | None:
        """A whole number from 1, or null, which is not the same as absent here: that is `default`."""
        if self.called(name) in self._nulls or (name not in self and default is None):
            return None
        return self.count(name, default)

    def number_or_null(self, name: str, default: float | None) -> float | None:
        """A number above 0, or null; `default` if absent."""
        if self.called(name) in self._nulls or (name not in self and default is None):
            return None
        return self.number(name, default)

    def words(self, name: str, allowed: Sequence[str], count: int) -> list[str]:
        """A list of so many of `allowed`."""
        value = self._get(name, None)
        if not isinstance(value, list) or len(value) != count or any(item not in allowed for item in value):
            raise self._unfit(name, value, f"{count} times {' or '.join(allowed)}")
        return [str(item) for item in value]

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        value = self._get(name, None)
        if not isinstance(value, list):
            raise self._unfit(name, value, "a list of numbers above 0")
        items = Fields({str(place): item for place, item in enumerate(value)}, f"{self._where}{self.called(name)}.")
        return tuple(items.number(str(place)) for place in range(len(value)))

    def switches(self, name: str, count: int) -> list[bool]:
        """The first `count` of a list of zeros and ones."""
        value = self._get(name, None)
        if not isinstance(value, list) or len(value) < count or any(item not in (0, 1) for item in value):
            raise self._unfit(name, value, f"{count} times 0 or 1")
        return [item == 1 for item in value[:count]]

    def get(self, name: str) -> Any:
        """Whatever stands there, unchecked."""
        return self._values.get(self.called(name))

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(self.called(name), default)
        if value is None:
            raise LoadError(f"config.json has no `{self._where}{self.called(name)}`")
        return value

    def _unfit(self, name: str, got: Any, allowed: str) -> LoadError:
        return LoadError(f"`{self._where}{self.called(name)}` in config.json is {got!r}; supported: {allowed}")
