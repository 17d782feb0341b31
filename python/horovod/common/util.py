"""Small things that Horovod's users and tests import from here; the names are Horovod's."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from horovod.common.basics import _basics

T = TypeVar("T")

# Frameworks that this release has an adapter for.
_EXTENSIONS = frozenset({"jax", "keras", "mxnet", "tensorflow", "torch"})


def get_ext_suffix() -> str:
    """The ending of native modules of this interpreter."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the adapter for a framework is here and the framework is installed."""
    available = ext_base_name in _EXTENSIONS and importlib.util.find_spec(ext_base_name) is not None
    if verbose:
        print(f"horovod.{ext_base_name} is {'' if available else 'not '}available")
    return available


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError if the adapter named like `horovod.torch` is not in this release."""
    if ext_name.rpartition(".")[2] not in _EXTENSIONS:
        raise ImportError(f"{ext_name} is not in this release yet; see the table in README.md")


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Accepts every version: nothing here is built against a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the adapter can use a GPU: not in this release."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI is built in."""
    return _basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Whether ranks can meet without MPI."""
    return _basics.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    """Whether NCCL can be used."""
    return _basics.nccl_built() > 0


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM DDL is built in."""
    return _basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Whether oneCCL is built in."""
    return _basics.ccl_built()


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets variables of the environment for a while; None leaves one as it is."""
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
    """Whether `value` can be iterated over."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cuts a list into `parts` pieces whose lengths differ by one at most, longer ones first."""
    length, longer = divmod(len(values), parts)
    starts = [part * length + min(part, longer) for part in range(parts + 1)]
    return [values[start:end] for start, end in zip(starts, starts[1:])]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target` or newer; `target` is `major.minor.patch`."""
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are strings, got {ver!r} and {target!r}")
    if len(target.split(".")) != 3:
        raise ValueError(f"the target version must be major.minor.patch, got {target!r}")
    return _release(ver) >= _release(target)


def _release(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))
