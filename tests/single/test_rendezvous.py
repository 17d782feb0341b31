"""`open_rendezvous` and `use_rendezvous` in one process: what they refuse, and a world of one."""

import pytest

import horovod
import horovod.raw as hvd


@pytest.fixture(autouse=True)
def _alone():
    yield
    hvd.shutdown()
    horovod.use_rendezvous(None)


def test_a_world_of_one_needs_nobody():
    invitation = horovod.open_rendezvous(1)
    hvd.init(rank=0, size=1, invitation=invitation, host="here")
    assert (hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_size()) == (0, 1, 1, 1)
    with pytest.raises(ValueError, match=r"call hvd\.shutdown\(\) first"):
        horovod.open_rendezvous(1)
    with pytest.raises(ValueError, match=r"call hvd\.shutdown\(\) first"):
        horovod.use_rendezvous(None)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("garbage", 0, 1), "this is not an invitation"),
        (("", 0, 1), "this is not an invitation"),
        ((None, 2, 2), "the rank must be less than the size"),
        ((None, -1, 2), "the rank must be less than the size"),
    ],
)
def test_invalid_places_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        horovod.use_rendezvous(*arguments)


def test_the_arguments_of_init_belong_together():
    with pytest.raises(ValueError, match="belong together"):
        hvd.init(rank=0, size=1)
    with pytest.raises(ValueError, match="size is 0"):
        horovod.open_rendezvous(0)


def test_rank_0_is_the_process_that_opened_the_rendezvous():
    first = horovod.open_rendezvous(2)
    second = horovod.open_rendezvous(2)
    assert first != second
    with pytest.raises(ValueError, match="must be the process that called open_rendezvous"):
        hvd.init(rank=0, size=2, invitation=first)
