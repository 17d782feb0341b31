"""Small functions that programs written for Horovod import; the names are Horovod's."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from horovod.common.basics import _basics

__all__ = [
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_ext_suffix",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

T = TypeVar("T")

# Frameworks that this release has adapters for.
_EXTENSIONS = frozenset({"jax", "keras", "mxnet", "tensorflow", "torch"})

# The modules that ask a framework whether it finds a GPU.
_GPU_CHECKS = {"tensorflow": "horovod.tensorflow.util", "torch": "horovod.torch.gpu"}


def get_ext_suffix() -> str:
    """Return the file suffix of native modules of this interpreter.

    Returns:
        The suffix, such as `.cpython-311-x86_64-linux-gnu.so`.
    """
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework can be used: it is supported and installed.

    Args:
        ext_base_name: Name of the framework, such as `torch`.
        verbose: Whether to also print the answer (default: False).

    Returns:
        True if it can.
    """
    available = ext_base_name in _EXTENSIONS and importlib.util.find_spec(ext_base_name) is not None
    if verbose:
        print(f"horovod.{ext_base_name} is {'' if available else 'not '}available")
    return available


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise an error if a framework is not supported.

    Args:
        ext_name: Name of the module, such as `horovod.torch`.
        ext_env_var: Accepted for compatibility with Horovod.
        pkg_path: Accepted for compatibility with Horovod.
        *args: Accepted for compatibility with Horovod.

    Raises:
        ImportError: If there is no such module in this release.
    """
    if ext_name.rpartition(".")[2] not in _EXTENSIONS:
        raise ImportError(f"{ext_name} is not in this release yet; see the table in README.md")


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Accept every version: nothing is built against a framework.

    Args:
        name: Name of the framework.
        version: Its version.
        exception: Accepted for compatibility with Horovod (default: None).
    """


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework can use a GPU for collectives.

    Args:
        ext_base_name: Name of the framework, `torch` or `tensorflow`.
        verbose: Accepted for compatibility with Horovod (default: False).

    Returns:
        True if there is a driver, and the framework, which is imported, finds a GPU.
    """
    if not _basics.cuda_built() or ext_base_name not in _GPU_CHECKS:
        return False
    return bool(importlib.import_module(_GPU_CHECKS[ext_base_name]).has_gpu())


def mpi_built(verbose: bool = False) -> bool:
    """Return whether ranks can connect through MPI.

    Args:
        verbose: Accepted for compatibility with Horovod (default: False).

    Returns:
        Always True: MPI is looked for when the job starts.
    """
    return _basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Return whether ranks can connect without MPI, which Horovod calls Gloo.

    Args:
        verbose: Accepted for compatibility with Horovod (default: False).

    Returns:
        Always True.
    """
    return _basics.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    """Return whether collectives on GPUs use NCCL here.

    Args:
        verbose: Accepted for compatibility with Horovod (default: False).

    Returns:
        Whether there is an NCCL that is new enough, and a driver.
    """
    return _basics.nccl_built() > 0


def ddl_built(verbose: bool = False) -> bool:
    """Return whether IBM DDL is built in.

    Args:
        verbose: Accepted for compatibility with Horovod (default: False).

    Returns:
        Always False.
    """
    return _basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Return whether oneCCL is built in.

    Args:
        verbose: Accepted for compatibility with Horovod (default: False).

    Returns:
        Always False.
    """
    return _basics.ccl_built()


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables inside a `with` block.

    Args:
        **kwargs: Values by name; None leaves a variable as it is.

    Yields:
        Nothing.
    """
    before = {name: os.environ.get(name) for name in kwargs}
    os.environ.update({name: value for name, value in kwargs.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _cache(function: Callable[..., T]) -> Callable[..., T]:
    return functools.lru_cache(maxsize=None)(function)


def is_iterable(value: Any) -> bool:
    """Return whether a value can be iterated over.

    Args:
        value: Anything.

    Returns:
        True if it can.
    """
    try:
        iter(value)
    except TypeError:
        return False
    return True


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of two.

    Args:
        num_rank: The number.

    Returns:
        True if it is.
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cut a sequence into parts whose lengths differ by at most one, longer ones first.

    Args:
        values: The sequence.
        parts: Number of parts.

    Returns:
        The parts, in order.
    """
    length, longer = divmod(len(values), parts)
    starts = [part * length + min(part, longer) for part in range(parts + 1)]
    return [values[start:end] for start, end in zip(starts, starts[1:])]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version is at least another one.

    Args:
        ver: The version.
        target: The other one, as `major.minor.patch`.

    Returns:
        True if `ver` is `target` or newer.

    Raises:
        ValueError: If an argument is not a string, or `target` does not have three parts.
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are strings, got {ver!r} and {target!r}")
    if len(target.split(".")) != 3:
        raise ValueError(f"the target version must be major.minor.patch, got {target!r}")
    return _release(ver) >= _release(target)


def _release(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))
