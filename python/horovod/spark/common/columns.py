"""The columns of a DataFrame that a model uses: their kinds, and their shape as arrays.

Pure, but for types of Spark and Arrow. Vectors of Spark ML become lists of doubles on the way to
Parquet and to functions on Arrow batches, so a column is a number for each row, or a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean")


@dataclass(frozen=True)
class Kind:
    """What a column holds in each row.

    Args:
        name: `number`, `array`, `vector`, or `other` for what only a transformation can use.
        type: Type in Spark's words, such as `double`.
        shape: Shape of a row; empty for a number (default: not known yet).
    """

    name: str
    type: str
    shape: tuple[int, ...] | None = None

    @property
    def size(self) -> int | None:
        """Numbers in a row."""
        return None if self.shape is None else prod(self.shape)


def kinds_of(schema: Any, names: Iterable[str]) -> dict[str, Kind]:
    """The kinds of some columns of a Spark schema."""
    types = {field.name: field.dataType for field in schema.fields}
    missing = [name for name in names if name not in types]
    if missing:
        raise ValueError(
            f"the DataFrame has no column {_listed(missing)}; it has {_listed(sorted(types))}"
        )
    return {name: _kind(types[name]) for name in names}


def plain(frame: Any, names: Iterable[str]) -> Any:
    """A DataFrame of these columns in which vectors are lists, and decimals doubles."""
    kinds = kinds_of(frame.schema, names)
    return frame.select(*(plain_column(name, kind).alias(name) for name, kind in kinds.items()))


def plain_column(name: str, kind: Kind) -> Any:
    """A column of numbers or lists of them."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions

    column = functions.col(_quoted(name))
    if kind.name == "vector":
        return vector_to_array(column)
    return column.cast("double") if kind.type.startswith("decimal") else column


def check_usable(kinds: Mapping[str, Kind]) -> None:
    """Refuses columns that are no numbers, if no transformation makes numbers of them."""
    others = {name: kind.type for name, kind in kinds.items() if kind.name == "other"}
    if others:
        listed = ", ".join(f"`{name}` ({type_})" for name, type_ in others.items())
        raise ValueError(
            f"a model cannot use {listed}: columns hold numbers, booleans, arrays of them, or "
            "vectors; convert them, or give a transformation_fn that does"
        )


def shaped(kinds: Mapping[str, Kind], row: Mapping[str, Any]) -> dict[str, Kind]:
    """The kinds with the shapes that a first row has."""
    return {
        name: kind if kind.name == "other" else Kind(kind.name, kind.type, _shape(row[name]))
        for name, kind in kinds.items()
    }


def _kind(data_type: Any) -> Kind:
    text = data_type.simpleString()
    if type(data_type).__name__ == "VectorUDT":
        return Kind("vector", "vector")
    if text.startswith("array<") and _innermost(text) in _NUMBERS:
        return Kind("array", text)
    number = text in _NUMBERS or text.startswith("decimal")
    return Kind("number" if number else "other", text, () if number else None)


def _innermost(text: str) -> str:
    return text.replace("array<", "").rstrip(">")


def _shape(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        inner = _shape(value[0]) if value else ()
        return None if inner is None else (len(value), *inner)
    return ()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
