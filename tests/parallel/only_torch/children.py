"""Functions that the tests run in child processes of ranks; imports as little as possible."""

import horovod.raw as hvd

NUMBERS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


def answers(_=None):
    """What a process reports about its rank and size."""
    return hvd.is_initialized(), *(getattr(hvd, name)() for name in NUMBERS)


def refusals(_=None):
    """The errors from everything that only a rank can do."""
    import numpy as np

    array = np.ones(1)
    calls = [
        lambda: hvd.allreduce(array),
        lambda: hvd.allgather(array),
        lambda: hvd.broadcast(array, 0),
        hvd.barrier,
        hvd.join,
        hvd.init,
        hvd.shutdown,
    ]
    return [exception_of(call) for call in calls]


def as_it_is(sample):
    """Keeps a loader from converting samples to tensors and lists."""
    return sample


def exception_of(call):
    """The class and the text of the exception that a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


class Places:
    """A dataset that asks for rank and size when it is unpickled in a worker, and per sample."""

    def __init__(self, process_set):
        self.process_set = process_set
        self.on_arrival = None

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.on_arrival = answers()

    def __len__(self):
        return 2

    def __getitem__(self, index):
        members = self.process_set.size(), self.process_set.included()
        world = hvd.global_process_set.size(), hvd.global_process_set.rank()
        return answers(), self.on_arrival, members, world, refusals() if index == 0 else None
