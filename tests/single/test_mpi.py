"""Which MPI library is loaded, if any, and the errors for an inconsistent environment."""

import sys
from pathlib import Path

import pytest

from horovod.common import mpi
from horovod.common.basics import _basics as hvd

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}


@pytest.fixture(autouse=True)
def away():
    yield
    hvd.shutdown()


def test_mpi_libraries_are_recognized_by_name_even_if_a_wheel_renames_them():
    for name in ("libmpi.so", "libmpi.so.40.30.4", "libmpich.so.12", "libmpi-0a1b2c3d.so.12.1.8"):
        assert mpi._LIBRARY.fullmatch(name), name
    for name in ("libmpi_cxx.so.40", "libmpi_mpifh.so", "libmpifort.so.12", "libmpi.so.py"):
        assert not mpi._LIBRARY.fullmatch(name), name


def test_the_library_next_to_the_launcher_comes_first(tmp_path, monkeypatch):
    for name in ("bin/mpirun", "lib/libmpi.so.40", "lib/libmpi.so.12"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    ours = [Path(path) for path in mpi._candidates("Open MPI")]
    assert ours[0] == tmp_path / "lib" / "libmpi.so.40"
    assert tmp_path / "lib" / "libmpi.so.12" not in ours
    assert ours[-2:] == [Path("libmpi.so.40"), Path("libmpi.so")]
    assert tmp_path / "lib" / "libmpi.so.12" in [Path(path) for path in mpi._candidates("")]


def test_invalid_libraries_and_those_of_another_mpi_are_refused(tmp_path):
    native = sys.modules["horovod._native"]
    with pytest.raises(OSError, match="cannot be opened"):
        native.Mpi(str(tmp_path / "libmpi.so"))
    with pytest.raises(OSError, match="is MPICH, which is not Open MPI"):
        native.Mpi("libc.so.6", "Open MPI")
    with pytest.raises(OSError, match="has no MPI_Init_thread"):
        native.Mpi("libc.so.6")


def test_ranks_of_mpirun_can_run_without_an_mpi_library(monkeypatch):
    monkeypatch.setattr(mpi, "_opened", None)
    monkeypatch.setattr(mpi, "_loaded", lambda: None)
    monkeypatch.setattr(mpi, "_candidates", lambda launcher: iter(()))
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.mpi_enabled()) == (0, 1, False)
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_CONTROLLER", "mpi")
    with pytest.raises(ValueError, match="no MPI library can be loaded"):
        hvd.init()
    monkeypatch.setenv("HOROVOD_CONTROLLER", "pigeon")
    with pytest.raises(ValueError, match=r"^Unsupported controller type, "):
        hvd.init()


def test_incomplete_variables_and_invalid_rank_lists_are_reported(monkeypatch):
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    with pytest.raises(ValueError, match="started by Open MPI, but OMPI_COMM_WORLD_SIZE is not"):
        hvd.init()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    for wrong in ([0, 4], [1, 1], [-1]):
        with pytest.raises(ValueError, match="must list distinct ranks of the 4 in the job"):
            hvd.init(comm=wrong)
