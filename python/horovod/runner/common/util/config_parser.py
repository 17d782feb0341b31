"""Conversions between options, the configuration file and the variables of the ranks.

They are based on the launcher's own table of options; its variables are attributes of this module,
under their own names.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from horovod.runner import options
from horovod.runner.options import Option


def set_args_from_config(
    args: Namespace, config: Mapping[str, Any], override_args: Collection[str]
) -> None:
    """Sets arguments from a configuration, except those in `override_args`."""
    controller = config.get("controller")
    if controller is not None and controller.lower() not in _choices("controller"):
        raise ValueError(f"No such controller supported: {controller}")
    for option in options.table():
        value = None if option.key is None else _look_up(config, option.key)
        if value is None or option.argument in override_args:
            continue
        if option.choice is None:
            setattr(args, option.argument, value)
        elif _spelled(value) == option.choice:
            setattr(args, option.argument, option.means)


def validate_config_args(args: Namespace) -> None:
    """Raises a ValueError for numbers that are out of range."""
    for option in options.table():
        value = getattr(args, option.argument, None)
        numeric = option.variable is not None and option.form in ("whole", "decimal", "fraction")
        if value is None or not numeric:
            continue
        if value < 0:
            raise ValueError(f"{option.argument}={value} must be >= 0")
        if option.form == "fraction" and value > 1:
            raise ValueError(f"{option.argument}={value} must be in [0, 1]")


def set_env_from_args(env: MutableMapping[str, str], args: Namespace) -> MutableMapping[str, str]:
    """Sets the variables of the ranks for some arguments; returns the same mapping."""
    words = [word for option in options.table() for word in _words(option, args)]
    env.update(options.parse(["--num-proc=1", *words]).environment)
    return env


def _words(option: Option, args: Namespace) -> list[str]:
    """The command line options for an argument, if it only concerns the ranks."""
    value = getattr(args, option.argument, None)
    # The first of several spellings is enough.
    first = next(
        each
        for each in options.table()
        if (each.argument, each.means) == (option.argument, option.means)
    )
    if option.variable is None or value is None or option is not first:
        return []
    if option.means is None:
        return [f"{option.names[0]}={value}"]
    # A switch that is off and has no opposite needs no option.
    return [option.names[0]] if bool(value) is option.means else []


def _choices(key: str) -> set[str | None]:
    return {option.choice for option in options.table() if option.key == key}


def _look_up(config: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    value = config.get(section)
    return value.get(name) if name and isinstance(value, Mapping) else (None if name else value)


def _spelled(value: object) -> str:
    """The value as written in YAML."""
    return str(value).lower()


def __getattr__(name: str) -> str:
    if name.isupper() and any(option.variable == name for option in options.table()):
        return name
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
