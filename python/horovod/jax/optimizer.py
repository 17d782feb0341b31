"""Gradient transformations of optax whose gradients are reduced over all ranks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.common.process_sets import ProcessSet, global_process_set, registered_id
from horovod.jax.compression import Compression, Compressor
from horovod.jax.mpi_ops import Average, Sum, allreduce

if TYPE_CHECKING:
    import optax


def DistributedOptimizer(
    optimizer: optax.GradientTransformation,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
) -> optax.GradientTransformationExtraArgs:
    """The transformation `optimizer` behind a reduction of the gradients, as one operation.

    With several `backward_passes_per_step` the gradients of so many calls are added up, or averaged
    if asked, and only the last of these calls reduces and updates. An average is taken in two
    steps with `gradient_predivide_factor`: one division before the sum, the rest behind it.
    """
    optax = _optax()
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            f"{optimizer!r} is not a gradient transformation of optax; give one such as "
            "optax.sgd(0.1)"
        )
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    inner = optax.with_extra_args_support(optimizer)

    def reduce(gradients: Any) -> Any:
        if registered_id(process_set) != 0 and not process_set.included():
            return gradients
        how: dict[str, Any] = {"op": op}
        if gradient_predivide_factor != 1.0:
            members = process_set.size() or 1
            how = {"op": Sum, "prescale_factor": 1.0 / gradient_predivide_factor}
            how["postscale_factor"] = gradient_predivide_factor / members
        return allreduce(gradients, compression=compression, process_set=process_set, **how)

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
