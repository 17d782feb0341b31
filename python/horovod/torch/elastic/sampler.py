"""A sampler whose epoch continues where it was when the number of ranks changes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any, cast

import torch.utils.data

from horovod.torch.mpi_ops import rank, size

__all__ = [
    "ElasticSampler",
]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Sampler that splits what is left of an epoch evenly among the ranks.

    All ranks have the samples of an epoch in the same order and take turns, so a single number,
    which `record_batch` counts, says how far the epoch has progressed. Some samples are repeated if
    the ranks could not get equal shares otherwise. Put the sampler into the state, so that it is
    committed.

    Args:
        dataset: Dataset with a length.
        shuffle: Whether to shuffle the samples in each epoch (default: True).
        seed: Seed of the shuffling, the same on every rank (default: 0).

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        dataset = torch.utils.data.TensorDataset(torch.arange(100))
        sampler = hvd.elastic.ElasticSampler(dataset)
        loader = torch.utils.data.DataLoader(dataset, batch_size=10, sampler=sampler)
        for number, batch in enumerate(loader):
            sampler.record_batch(number, 10)
        sampler.set_epoch(1)
        ```
    """

    def __init__(
        self, dataset: torch.utils.data.Dataset[Any], shuffle: bool = True, seed: int = 0
    ) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 1
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, in a different order from the last.

        Call it at the end of an epoch, not at the start: it discards the progress.

        Args:
            epoch: Number of the epoch that begins.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch that all ranks have processed.

        Args:
            batch_idx: Number of the batch; not used.
            batch_size: Number of samples in the batch of one rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the progress of the epoch.

        Returns:
            The epoch and the number of samples that were processed in it, by the names of the
            attributes.
        """
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue from a state.

        Args:
            state_dict: What `state_dict()` returned.
        """
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Split the remaining samples among the current ranks."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(cast(Sized, self.dataset))))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        # There may be fewer samples than ranks, so repeating them once may not be enough.
        return iter([left[turn % len(left)] for turn in self._turns()])

    def __len__(self) -> int:
        return self.num_samples

    def _turns(self) -> range:
        return range(self.rank, self.total_size, self.num_replicas)
