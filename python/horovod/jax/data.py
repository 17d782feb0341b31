"""The batches of a reader of `horovod.data` on JAX's devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from horovod.data import BatchReader

__all__ = ["device_batches"]


def device_batches(reader: BatchReader, device: Any = None, ahead: int = 2) -> Iterator[Any]:
    """Iterate over one epoch of a reader, with the batches on a device.

    Transfers do not wait for the program: some are on their way while a batch is used. On a CPU,
    JAX uses the memory of the reader where it is aligned as JAX needs it.

    Args:
        reader: A reader of `horovod.data`, such as `ParquetReader`.
        device: A device, or a sharding of this process's devices (default: None, the default
            device).
        ahead: How many batches to transfer before they are asked for (default: 2).

    Yields:
        Batches: dicts of arrays by column name. Columns of strings, bytes and times stay arrays of
        NumPy.

    Example:
        ```python
        import pyarrow as pa
        import horovod.jax as hvd

        from horovod.data import ArrowReader
        from horovod.jax.data import device_batches

        table = pa.table({"x": [[1.0, 2.0]] * 64, "label": range(64)})
        for batch in device_batches(ArrowReader(table, batch_size=16)):
            assert batch["x"].shape == (16, 2) and batch["label"].shape == (16,)
        ```
    """
    on_their_way: deque[Any] = deque()
    for batch in reader:
        on_their_way.append({name: _placed(array, device) for name, array in batch.items()})
        if len(on_their_way) > ahead:
            yield on_their_way.popleft()
    yield from on_their_way


def _placed(array: Any, device: Any) -> Any:
    is_number = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    return jax.device_put(array, device) if is_number else array
