"""What the tests have child processes of ranks do; imports as little as a child needs."""

import horovod.raw as hvd

NUMBERS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


def answers(_=None):
    """What a process says about its place."""
    return hvd.is_initialized(), *(getattr(hvd, name)() for name in NUMBERS)


def refusals(_=None):
    """The errors of everything that only a rank can do."""
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
    return [told(call) for call in calls]


def as_it_is(sample):
    """Keeps a loader from making tensors and lists of a sample."""
    return sample


def told(call):
    """The class and the text of the exception that a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


class Places:
    """A dataset that asks where it is: when it arrives in a worker, and for every sample."""

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
