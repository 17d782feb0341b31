"""Groups of torch.distributed, in PyTorch versions that ask all ranks and in those that do not."""

import inspect

import torch.distributed as dist

from horovod.common.process_sets import register_together

ALL_RANKS_CREATE_GROUPS = "default_pg.new_group" in inspect.getsource(dist.distributed_c10d)


def prepare_group(ranks):
    """What a program does on all ranks, as the guide says, if PyTorch asks only the members."""
    if not ALL_RANKS_CREATE_GROUPS:
        register_together(ranks)


def new_group(ranks):
    prepare_group(ranks)
    return dist.new_group(ranks)
