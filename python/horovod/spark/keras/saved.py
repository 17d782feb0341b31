"""Models and optimizers of Keras 3 and Keras 2 in a form that travels.

A model travels as the file that its own Keras saves, without its optimizer; what else a training
needs goes beside it. The module of the model says which Keras it belongs to.
"""

from __future__ import annotations

import importlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod._keras.backends import backend_of, is_keras_3
from horovod.common import environment


@dataclass(frozen=True)
class KerasName:
    """Which Keras: the module to import, and the variables to set before that."""

    module: str
    backend: str

    @classmethod
    def of(cls, thing: Any) -> KerasName:
        """That of a model, an optimizer or another object of Keras."""
        roots = {base.__module__.partition(".")[0] for base in type(thing).__mro__}
        module = next((name for name in ("tf_keras", "keras") if name in roots), None)
        if module is None:
            raise ValueError(f"{type(thing).__name__} is not an object of Keras")
        return cls(module, backend_of(importlib.import_module(module)))

    @property
    def variables(self) -> dict[str, str]:
        """Variables that processes need before they import it."""
        return {
            "KERAS_BACKEND": self.backend,
            "TF_USE_LEGACY_KERAS": str(int(self.module == "tf_keras")),
        }

    def load(self) -> Any:
        """The module."""
        environment.set_up_keras(self.variables)
        return importlib.import_module(self.module)

    def load_horovod(self) -> Any:
        """Our module for it."""
        tensorflow = self.backend == "tensorflow"
        return importlib.import_module(f"horovod.{'tensorflow.' if tensorflow else ''}keras")


@dataclass(frozen=True)
class SavedModel:
    """A model as the bytes of its file."""

    name: KerasName
    content: bytes
    custom_objects: dict[str, Any]

    @classmethod
    def of(cls, model: Any, custom_objects: dict[str, Any] | None = None) -> SavedModel:
        """Saves a model."""
        with tempfile.TemporaryDirectory(prefix="ronde-keras-") as folder:
            path = Path(folder) / "model.keras"
            save(model, path)
            return cls(KerasName.of(model), path.read_bytes(), dict(custom_objects or {}))

    @classmethod
    def read(cls, content: bytes, like: Any, custom_objects: Any = None) -> SavedModel:
        """The bytes of a file that belongs to the same Keras as another model."""
        return cls(KerasName.of(like), content, dict(custom_objects or {}))

    def load(self) -> Any:
        """The model, not compiled."""
        keras = self.name.load()
        with tempfile.TemporaryDirectory(prefix="ronde-keras-") as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(self.content)
            return keras.models.load_model(
                str(path), custom_objects=self.custom_objects, compile=False, safe_mode=False
            )


@dataclass(frozen=True)
class SavedOptimizer:
    """An optimizer as its configuration."""

    name: KerasName
    config: dict[str, Any]
    custom_objects: dict[str, Any]

    @classmethod
    def of(cls, optimizer: Any, custom_objects: dict[str, Any] | None = None) -> SavedOptimizer:
        """Takes the configuration of an optimizer."""
        name = KerasName.of(optimizer)
        serialize = importlib.import_module(name.module).optimizers.serialize
        return cls(name, serialize(optimizer), dict(custom_objects or {}))

    @property
    def rate(self) -> float | None:
        """Its learning rate; None if it is a schedule."""
        value = self.config["config"].get("learning_rate")
        return float(value) if isinstance(value, (int, float)) else None

    def load(self, factor: float = 1.0) -> Any:
        """The optimizer, with its learning rate multiplied if that is a number."""
        config = dict(self.config)
        if self.rate is not None:
            config["config"] = {**config["config"], "learning_rate": self.rate * factor}
        deserialize = self.name.load().optimizers.deserialize
        return deserialize(config, custom_objects=self.custom_objects)


def save(model: Any, path: Path) -> None:
    """Writes a model without its optimizer."""
    keras_3 = is_keras_3(importlib.import_module(KerasName.of(model).module))
    options: dict[str, Any] = {"include_optimizer": False} if keras_3 else {}
    model.save(str(path), **options)
