"""A sampler whose epoch goes on where it was when the number of ranks changes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any, cast

import torch.utils.data

from horovod.torch.mpi_ops import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Shares the samples that are left of an epoch out among the ranks, evenly.

    The samples of an epoch have one order for all ranks, which take turns; so what has been done
    is known by a single number, which `record_batch` counts. Some samples come twice if the ranks
    could not get equally many otherwise. Put the sampler into the state, or it forgets.
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
        """Begins an epoch; call it behind each, so that the next is in another order.

        It forgets what has been done, so do not call it where an epoch is taken up again.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts a batch that all ranks have done: `batch_size` is that of one of them."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """How far training has come."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Goes on from there."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Shares what is left out among the ranks that there are now."""
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
        # There may be fewer samples than ranks, so going round once may not be enough.
        return iter([left[turn % len(left)] for turn in self._turns()])

    def __len__(self) -> int:
        return self.num_samples

    def _turns(self) -> range:
        return range(self.rank, self.total_size, self.num_replicas)
