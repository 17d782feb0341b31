"""The batch norm layer that normalizes across ranks, in a world of one and without a world."""

import pytest
import torch

import horovod.torch as hvd


@pytest.fixture
def world():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("affine", [True, False])
def test_in_a_world_of_one_it_is_plain_batch_norm(world, momentum, affine):
    options = {"eps": 1e-3, "momentum": momentum, "affine": affine}
    plain, synced = torch.nn.BatchNorm2d(4, **options), hvd.SyncBatchNorm(4, **options)
    images = torch.randn(3, 4, 5, 5)
    for training in (True, True, False):
        plain.train(training)
        synced.train(training)
        assert torch.equal(synced(images), plain(images))
    assert str(synced.state_dict()) == str(plain.state_dict())
    assert isinstance(synced, torch.nn.modules.batchnorm._BatchNorm)


def test_evaluation_needs_no_world_but_training_does():
    synced = hvd.SyncBatchNorm(4)
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)\."):
        synced(torch.ones(2, 4))
    assert synced.eval()(torch.ones(2, 4)).shape == (2, 4)


def test_too_few_dimensions_are_refused(world):
    with pytest.raises(ValueError, match=r"expected at least 2D input \(got 1D input\)"):
        hvd.SyncBatchNorm(4)(torch.ones(4))
