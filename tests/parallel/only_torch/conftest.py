"""What several files of tests with torch share."""

import pytest


@pytest.fixture(scope="module")
def process_group():
    """The default group of torch.distributed, on the `ronde` backend, for the tests of a file."""
    # Only here: some files in this folder need no torch.
    import torch.distributed as dist

    import horovod.torch as hvd

    dist.init_process_group("ronde")
    yield
    dist.destroy_process_group()
    # The next file's group uses the same port.
    hvd.barrier()
