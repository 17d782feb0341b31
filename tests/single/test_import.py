"""Imports are cheap, load no framework, and name what is missing."""

import subprocess
import sys

import pytest

import horovod


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_version_is_horovods_with_ours_appended():
    assert horovod.__version__ == "0.28.1+ronde.0.1.0"


def test_the_top_level_imports_no_framework_and_no_native_code():
    result = python(
        "import sys; before = set(sys.modules); import horovod\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}\n"
        "             - {'__future__'}),\n"
        "      'horovod._native' in sys.modules)"
    )
    assert result.stdout == "['horovod'] False\n", result.stderr


def test_the_exceptions_need_no_native_code():
    result = python(
        "import sys; sys.modules['horovod._native'] = None\n"
        "from horovod.common.exceptions import HorovodInternalError\n"
        "print(HorovodInternalError.__mro__[1].__name__)"
    )
    assert result.stdout == "RuntimeError\n", result.stderr


def test_without_torch_the_error_names_what_to_install():
    result = python("import sys; sys.modules['torch'] = None\nimport horovod.torch")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "ImportError: horovod.torch needs PyTorch, which is not installed here; "
        "install it with `pip install torch`"
    )


@pytest.mark.parametrize("framework", ["tensorflow", "keras"])
def test_without_a_framework_the_error_names_what_to_install(framework):
    result = python(f"import sys; sys.modules['{framework}'] = None\nimport horovod.{framework}")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: horovod.{framework} needs ")
    assert last.endswith(f"install it with `pip install {framework}`")


@pytest.mark.parametrize("module", ["horovod", "horovod.torch"])
def test_a_name_that_does_not_exist_is_an_ordinary_attribute_error(module):
    __import__(module)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nonsense'"):
        _ = sys.modules[module].nonsense
