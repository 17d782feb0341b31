"""Gradient transformations of optax whose gradients are reduced over all ranks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.common.process_sets import ProcessSet, global_process_set, registered_id
from horovod.common.reductions import predivided
from horovod.jax.compression import Compression, Compressor
from horovod.jax.mpi_ops import Average, allreduce

if TYPE_CHECKING:
    import optax

__all__ = [
    "DistributedOptimizer",
]


def DistributedOptimizer(
    optimizer: optax.GradientTransformation,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
) -> optax.GradientTransformationExtraArgs:
    """Wrap an optax optimizer so that it updates with gradients reduced over all ranks.

    All gradients are reduced as one operation.

    Args:
        optimizer: A gradient transformation of optax.
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        backward_passes_per_step: Calls of `update` before each step, at least 1 (default: 1). Their
            gradients are summed locally, then reduced and applied once.
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0). Only with
            `op=hvd.Average`.
        average_aggregated_gradients: Whether to divide the gradients of several passes by their
            number (default: False).
        process_set: Ranks that take part (default: all ranks). On other ranks gradients are not
            changed.

    Returns:
        A gradient transformation of optax.

    Raises:
        ImportError: If optax is not installed.
        ValueError: If `optimizer` is not a gradient transformation, or `gradient_predivide_factor`
            is combined with another `op`.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        import optax
        import horovod.jax as hvd

        hvd.init()
        params = hvd.broadcast_parameters({"w": jnp.ones(3)})
        optimizer = hvd.DistributedOptimizer(optax.sgd(0.01 * hvd.size()))
        state = optimizer.init(params)
        gradients = jax.grad(lambda params: jnp.sum(params["w"] ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        ```
    """
    optax = _optax()
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            f"{optimizer!r} is not a gradient transformation of optax; give one such as "
            "optax.sgd(0.1)"
        )
    prescale, postscale = predivided(gradient_predivide_factor, op)
    inner = optax.with_extra_args_support(optimizer)

    def reduce(gradients: Any) -> Any:
        if registered_id(process_set) != 0 and not process_set.included():
            return gradients
        return allreduce(
            gradients,
            op,
            compression=compression,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return inner.update(reduce(gradients), state, params, **extra)

    distributed = optax.GradientTransformationExtraArgs(inner.init, update)
    if backward_passes_per_step == 1:
        return distributed
    accumulating = optax.MultiSteps(
        distributed, backward_passes_per_step, use_grad_mean=average_aggregated_gradients
    )
    return accumulating.gradient_transformation()


def _optax() -> Any:
    try:
        import optax
    except ModuleNotFoundError as error:
        if error.name != "optax":
            raise
        raise ImportError(
            "hvd.DistributedOptimizer wraps optimizers of optax, which is not installed here; "
            "install it with `pip install optax`, or reduce gradients with hvd.allreduce",
            name="optax",
        ) from error
    return optax
