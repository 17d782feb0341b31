"""The native handlers that compiled programs call, for all supported versions of JAX's interface.

A handler is registered once per process. If JAX lacks a function, or has it under a name that no
known release uses, an error says so.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib.version

from horovod import _native

OLDEST = (0, 4, 31)
# As XLA spells them; JAX accepts handlers for platforms that this machine does not have.
PLATFORMS = ("cpu", "CUDA")
# From and before: releases with futures whose function table does not show it.
SILENT = ((0, 5), (0, 6))

# Results of these have the shapes of the operands and may share their memory.
_SHAPELESS = frozenset({"allreduce", "broadcast"})


class Handlers:
    """JAX's foreign function interface with our handlers registered."""

    def __init__(self) -> None:
        self._ffi = _interface()
        first, behind = SILENT
        if first <= _numbers(jaxlib.version.__version__) < behind:
            _native.xla_expect_futures()
        for platform in PLATFORMS:
            for target, handler in _native.xla_handlers(platform).items():
                self._ffi.register_ffi_target(target, handler, platform=platform)
        parameters = inspect.signature(self._ffi.ffi_call).parameters
        # Before 0.4.36 the operands are passed in the same call as the shapes.
        self._at_once = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
        self._has_aliases = "input_output_aliases" in parameters
        self._has_vmap_method = "vmap_method" in parameters
        self._has_side_effects = "has_side_effect" in parameters

    def call(
        self,
        collective: str,
        shapes: Sequence[jax.ShapeDtypeStruct],
        operands: Sequence[jax.Array],
        *,
        kept: bool,
        **attributes: Any,
    ) -> list[jax.Array]:
        """Calls a collective on operands, inside a compiled program.

        A call that is `kept` runs even if nothing in the program uses its results.
        """
        options: dict[str, Any] = {}
        if kept:
            if not self._has_side_effects:
                raise ValueError(
                    f"{collective} of fewer rows than ranks does not work inside jax.jit with "
                    f"JAX {jax.__version__}; use a newer JAX, or call it outside"
                )
            options["has_side_effect"] = True
        if collective in _SHAPELESS and self._has_vmap_method:
            options["vmap_method"] = "broadcast_all"
        if collective == "allreduce" and self._has_aliases:
            # One of them may have a token more.
            pairs = min(len(shapes), len(operands))
            options["input_output_aliases"] = {place: place for place in range(pairs)}
        target = f"ronde_{collective}"
        if self._at_once:
            results = self._ffi.ffi_call(target, list(shapes), *operands, **options, **attributes)
        else:
            results = self._ffi.ffi_call(target, list(shapes), **options)(*operands, **attributes)
        return list(results)


_registered: list[Handlers] = []


def handlers() -> Handlers:
    """The handlers of this process."""
    if not _registered:
        _registered.append(Handlers())
    return _registered[0]


def is_native(backend: str) -> bool:
    """Whether programs on a backend of JAX can call the handlers."""
    if backend != "gpu":
        return backend == "cpu"
    # JAX has one name for NVIDIA's and AMD's.
    return "rocm" not in jax.local_devices(backend="gpu")[0].client.platform_version.lower()


def check_version(version: str) -> None:
    """Raises if JAX is too old."""
    if _numbers(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"horovod.jax needs JAX {oldest} or newer, and {version} is installed here; "
            f"install a newer one with `pip install 'jax>={oldest}'`",
            name="jax",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _interface() -> Any:
    for name in ("jax.ffi", "jax.extend.ffi"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "ffi_call") and hasattr(module, "register_ffi_target"):
            return module
    raise ImportError(
        f"JAX {jax.__version__} has neither `jax.ffi` nor `jax.extend.ffi` with `ffi_call` and "
        "`register_ffi_target`, which horovod.jax needs inside jax.jit; use another release of "
        "JAX, or call the collectives outside jax.jit",
        name="jax.ffi",
    )


check_version(jax.__version__)
