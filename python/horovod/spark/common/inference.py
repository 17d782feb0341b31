"""Prediction over a DataFrame: columns are added to its Arrow batches, on the executors.

What a model returns for a row is known before Spark runs anything: it is asked once, here, about a
row of zeros of the right shapes. Several numbers become a vector of Spark ML, or an array where the
label is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horovod.spark.common.columns import Kind, check_usable, kinds_of, plain_column, shaped

if TYPE_CHECKING:
    from numpy.typing import NDArray

Predict = Callable[[list["NDArray[Any]"]], list["NDArray[Any]"]]

_HIDDEN = "__ronde_feature_"


class Known(NamedTuple):
    """What is known from training."""

    kinds: Mapping[str, Kind]
    labels: list[str]


class Output(NamedTuple):
    """A column that is added: its name, its type in Arrow batches, and whether it is a vector."""

    name: str
    type: str
    vector: bool


def transformed(
    frame: Any,
    features: Sequence[str],
    names: Sequence[str],
    predictor: Callable[[], Predict],
    known: Known,
) -> Any:
    """The DataFrame with the predictions in further columns."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions

    kinds = kinds_of(frame.schema, features)
    check_usable(kinds)
    frame = frame.drop(*names)
    outputs = _outputs(frame, features, names, predictor, known)
    hidden = [
        plain_column(name, kinds[name]).alias(f"{_HIDDEN}{number}")
        for number, name in enumerate(features)
    ]
    schema = _with_fields(frame.schema, outputs)
    added = frame.select("*", *hidden).mapInArrow(_adder(predictor, len(features), outputs), schema)
    if not any(output.vector for output in outputs):
        return added
    chosen = [functions.col(f"`{name}`") for name in frame.columns]
    for output in outputs:
        column = functions.col(f"`{output.name}`")
        chosen.append((array_to_vector(column) if output.vector else column).alias(output.name))
    return added.select(*chosen)


def _outputs(
    frame: Any,
    features: Sequence[str],
    names: Sequence[str],
    predictor: Callable[[], Predict],
    known: Known,
) -> list[Output]:
    """Asks the model what it returns for a row."""
    kinds = kinds_of(frame.schema, features)
    shapes = {name: known.kinds[name].shape for name in features if name in known.kinds}
    if len(shapes) < len(features) or None in shapes.values():
        columns = [plain_column(name, kinds[name]).alias(name) for name in features]
        row = frame.select(*columns).first()
        if row is None:
            raise ValueError("the DataFrame is empty, so the shapes of its columns are not known")
        shapes = {name: kind.shape for name, kind in shaped(kinds, row.asDict()).items()}
    zeros = [np.zeros((1, *(shapes[name] or ())), _dtype(kinds[name])) for name in features]
    results = predictor()(zeros)
    if len(results) != len(names):
        raise ValueError(
            f"the model returns {len(results)} outputs for {len(names)} label columns; "
            "name a label column for each output"
        )
    labels = [known.kinds.get(label) for label in known.labels]
    return [_output(name, label, array) for name, label, array in zip(names, labels, results)]


def _output(name: str, label: Kind | None, array: NDArray[Any]) -> Output:
    number = {"i": "bigint", "u": "bigint", "b": "boolean"}.get(array.dtype.kind, "double")
    if array.size == 1 and (label is None or label.name == "number"):
        return Output(name, number, False)
    if label is not None and label.name == "array":
        return Output(name, f"array<{number}>", False)
    return Output(name, "array<double>", True)


def _dtype(kind: Kind) -> np.dtype[Any]:
    """The type that the arrays of a column have."""
    inner = kind.type.replace("array<", "").rstrip(">")
    names = {"tinyint": "i1", "smallint": "i2", "int": "i4", "bigint": "i8", "boolean": "?"}
    return np.dtype(names.get(inner, "f4" if inner == "float" else "f8"))


def _with_fields(schema: Any, outputs: Sequence[Output]) -> Any:
    from pyspark.sql import types

    numbers = {
        "bigint": types.LongType(),
        "boolean": types.BooleanType(),
        "double": types.DoubleType(),
    }
    fields = []
    for output in outputs:
        number = numbers[output.type.replace("array<", "").rstrip(">")]
        kind = types.ArrayType(number) if output.type.startswith("array<") else number
        fields.append(types.StructField(output.name, kind))
    return types.StructType([*schema.fields, *fields])


def _adder(
    predictor: Callable[[], Predict], features: int, outputs: Sequence[Output]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What runs on executors."""

    def add(batches: Iterator[Any]) -> Iterator[Any]:
        from horovod.spark.common.arrow import with_predictions

        predict = predictor()
        for batch in batches:
            yield from with_predictions(batch, features, predict, outputs)

    return add
