"""Errors where MXNet is not installed. `make mxnet` tests the rest."""

import subprocess
import sys

import pytest

from horovod import _native


def last_line_of(code, folder=None):
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        cwd=folder,
    )
    return result.stderr.splitlines()[-1]


def test_without_mxnet_the_error_names_what_to_install():
    assert last_line_of("import sys; sys.modules['mxnet'] = None\nimport horovod.mxnet") == (
        "ImportError: horovod.mxnet needs MXNet, which is not installed here; install it with "
        "`pip install mxnet==1.9.1 'numpy<1.24'`"
    )


def test_an_mxnet_broken_by_a_new_numpy_is_not_reported_as_missing(tmp_path):
    # MXNet 1.9 does this while it is imported.
    (tmp_path / "mxnet.py").write_text("import numpy\nonp_bool = numpy.no_such_name\n")
    line = last_line_of("import sys; sys.path.insert(0, '')\nimport horovod.mxnet", tmp_path)
    assert line.startswith("ImportError: MXNet could not be imported (module 'numpy' has no")
    assert line.endswith("`pip install 'numpy<1.24'`")


def test_the_native_part_needs_the_mxnet_library():
    with pytest.raises(ImportError, match=r"cannot use this one: `libmxnet\.so` is not loaded"):
        _native.mxnet_open("/nowhere/libmxnet.so")
    with pytest.raises(RuntimeError, match="call mxnet_open first"):
        _native.mxnet_push("x", 0, (1, 1.0, 1.0, 0), [], [], 0)
