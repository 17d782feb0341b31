"""Lightning 2 on Ronde: `Trainer(strategy=RondeStrategy())` in a job of horovodrun."""

from __future__ import annotations

try:
    import lightning.pytorch as _lightning  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("lightning", "lightning.pytorch"):
        raise
    raise ImportError(
        "horovod.lightning needs Lightning 2, which is not installed here; "
        "install it with `pip install lightning`",
        name=error.name,
    ) from error

from horovod.lightning.environment import RondeEnvironment
from horovod.lightning.strategy import RondeStrategy

__all__ = ["RondeEnvironment", "RondeStrategy"]
