"""Batches of a shard of Ray Data, from its blocks in Ray's object store.

Ray itself is not imported: a shard is asked for its blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.data.arrow import ArrowReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from horovod.data.batch_reader import Options


class RayReader(ArrowReader):
    """Reads the batches of one rank from its shard of a Ray dataset.

    A shard is one of `dataset.streaming_split(size)`, or what `ray.train.get_dataset_shard` returns
    in a worker. Blocks are read where they lie in Ray's object store; shuffled rows are copied once
    into the shuffle buffer and once into their batch, others not at all.

    Args:
        iterator: The shard of this rank.
        batch_size: Rows of a batch (default: 32).
        prefetch_batches: How many blocks Ray fetches ahead from other nodes (default: 1).
        **options: As in `BatchReader`: columns, shuffle, seed, shuffle_buffer_size, uneven,
            transform, ahead. A stream cannot be combined with uneven="repeat".
    """

    def __init__(
        self,
        iterator: Any,
        batch_size: int = 32,
        *,
        prefetch_batches: int = 1,
        **options: Unpack[Options],
    ) -> None:
        def blocks() -> Any:
            # Without a batch size, Ray passes its blocks on as they are.
            return iterator.iter_batches(
                batch_size=None, batch_format="pyarrow", prefetch_batches=prefetch_batches
            )

        super().__init__(blocks, batch_size, **options)
