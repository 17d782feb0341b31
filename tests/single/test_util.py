"""Small helpers that tests and programs import from `horovod.common`."""

import copy
import os
import pickle

import pytest
import torch

from horovod import _native
from horovod.common import exceptions, util


def test_env_sets_variables_and_restores_them(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.delenv("NEW", raising=False)
    with util.env(KEPT="2", NEW="3", IGNORED=None):
        assert (os.environ["KEPT"], os.environ["NEW"]) == ("2", "3")
        assert "IGNORED" not in os.environ
    assert os.environ["KEPT"] == "1"
    assert "NEW" not in os.environ


@pytest.mark.parametrize(
    ("length", "parts", "lengths"),
    [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (2, 3, [1, 1, 0]), (0, 2, [0, 0])],
)
def test_split_list_makes_pieces_of_nearly_equal_length(length, parts, lengths):
    pieces = util.split_list(list(range(length)), parts)
    assert [len(piece) for piece in pieces] == lengths
    assert [value for piece in pieces for value in piece] == list(range(length))


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        ("2.1.0", "2.1.0", True),
        ("2.10.0+cu132", "2.9.1", True),
        ("2.0", "2.0.1", False),
        ("1.13.1", "2.0.0", False),
    ],
)
def test_versions_are_compared_by_number(version, target, expected):
    assert util.is_version_greater_equal_than(version, target) is expected


def test_a_target_version_has_three_parts():
    with pytest.raises(ValueError, match=r"major\.minor\.patch"):
        util.is_version_greater_equal_than("2.1.0", "2.1")


def test_small_helpers_give_the_expected_answers():
    assert [util.num_rank_is_power_2(number) for number in (0, 1, 3, 8)] == [
        False,
        True,
        False,
        True,
    ]
    assert util.is_iterable([]) and not util.is_iterable(1)
    assert util.gloo_built() and util.mpi_built()
    assert util.extension_available("torch") and not util.extension_available("mxnet")
    assert util.get_ext_suffix().endswith(".so")
    with pytest.raises(ImportError, match="not in this release yet"):
        util.check_extension("horovod.nonsense", "HOROVOD_WITH_NONSENSE", "")


@pytest.mark.parametrize("has_driver", [True, False])
@pytest.mark.parametrize("finds_gpu", [True, False])
def test_a_gpu_needs_a_driver_and_a_framework_that_finds_it(monkeypatch, has_driver, finds_gpu):
    monkeypatch.setattr(_native, "has_cuda", lambda: has_driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: finds_gpu)
    assert util.gpu_available("torch") is (has_driver and finds_gpu)
    assert not util.gpu_available("mxnet")


def test_the_error_of_a_failed_collective_describes_the_loss():
    plain = exceptions.HorovodInternalError("Mismatched shapes", 3)
    assert plain.args == ("Mismatched shapes", 3)
    assert (plain.ranks, plain.hosts, plain.cause, plain.tensor) == ([], [], "", None)
    assert str(exceptions.HorovodInternalError()) == ""
    lost = exceptions.HorovodInternalError(
        "lost rank 1", ranks=[1], hosts=["node-b"], cause="signal", tensor="x"
    )
    for same in (lost, pickle.loads(pickle.dumps(lost)), copy.copy(lost)):
        assert type(same) is exceptions.HorovodInternalError and str(same) == "lost rank 1"
        assert (same.ranks, same.hosts, same.cause, same.tensor) == ([1], ["node-b"], "signal", "x")
    assert exceptions.HorovodInternalError.last() is None


def test_exceptions_have_the_attributes_of_horovods():
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync is True
    assert issubclass(exceptions.HostsUpdatedInterrupt, RuntimeError)
    mismatch = exceptions.HorovodVersionMismatchError("torch", "2.1", "2.0")
    assert isinstance(mismatch, ImportError)
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == (
        "torch",
        "2.1",
        "2.0",
    )
    assert str(mismatch) == exceptions.get_version_mismatch_message("torch", "2.1", "2.0")
