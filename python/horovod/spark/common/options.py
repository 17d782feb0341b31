"""A table of parameters, and the Spark ML parameters, accessors and constructor made from it.

A row of the table is an `Option`. `with_options` gives a class a Spark `Param` and a `setX` and
`getX` for each, and `constructor` gives it the signature with the names and defaults. So a name,
its default and its description stand in one place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from pyspark.ml.param import Param, Params

_C = TypeVar("_C", bound=type)


class Option(NamedTuple):
    """A parameter: its name, default and description, and how its accessors are spelled."""

    name: str
    default: Any
    doc: str
    # CamelCase of the name, unless Horovod spells it in another way.
    accessor: str = ""
    setter: str = ""

    @property
    def getter_name(self) -> str:
        """Such as `getBatchSize`."""
        return "get" + (self.accessor or self._camel())

    @property
    def setter_name(self) -> str:
        """Such as `setBatchSize`."""
        return "set" + (self.setter or self.accessor or self._camel())

    def _camel(self) -> str:
        return "".join(part.capitalize() for part in self.name.strip("_").split("_"))


class Configured(Params):
    """Spark ML parameters that come from tables of options."""

    _table: dict[str, Option] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**{name: _own(each.default) for name, each in self._table.items()})

    def setParams(self, **options: Any) -> Any:
        """Set several parameters.

        Args:
            **options: Their names and values.

        Returns:
            This object.

        Raises:
            TypeError: If there is no parameter of a name.
        """
        for name in options:
            if name not in self._table:
                raise TypeError(_unknown(type(self).__name__, name, self._table))
        return self._set(**options)


def with_options(options: Sequence[Option]) -> Callable[[_C], _C]:
    """A decorator that gives a class these options in addition to those of its bases."""

    def decorate(cls: _C) -> _C:
        inherited = getattr(cls, "_table", {})
        cls._table = {**inherited, **{option.name: option for option in options}}  # type: ignore[attr-defined]
        for option in options:
            parent: Any = Params._dummy()  # type: ignore[attr-defined, unused-ignore]
            setattr(cls, option.name, Param(parent, option.name, option.doc))
            setattr(cls, option.getter_name, _getter(option))
            setattr(cls, option.setter_name, _setter(option))
        return cls

    return decorate


def constructor(order: str) -> Callable[[_C], _C]:
    """A decorator that shows the options in the signature of a class: these names first."""

    def decorate(cls: _C) -> _C:
        table: dict[str, Option] = cls._table  # type: ignore[attr-defined]
        missing = [name for name in table if name not in order.split()]
        keyword = inspect.Parameter.KEYWORD_ONLY
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, keyword, default=table[name].default)
                for name in [*order.split(), *missing]
            ]
        )
        return cls

    return decorate


def _getter(option: Option) -> Any:
    def get(self: Params) -> Any:
        return self.getOrDefault(option.name)

    return _described(get, option.getter_name, f"Return `{option.name}`: {option.doc}.")


def _setter(option: Option) -> Any:
    def set_(self: Any, value: Any) -> Any:
        return self._set(**{option.name: value})

    return _described(set_, option.setter_name, f"Set `{option.name}`: {option.doc}.")


def _described(function: Any, name: str, text: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


def _own(default: Any) -> Any:
    """A default that this object may change."""
    return type(default)(default) if isinstance(default, (list, dict)) else default


def _unknown(owner: str, name: str, table: dict[str, Option]) -> str:
    near = get_close_matches(name, table, 1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    return f"{owner} has no parameter `{name}`{hint}"
