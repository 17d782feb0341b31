"""Builds the wheel: maturin packs the Python files and the native module, this adds the commands.

maturin leaves a workspace's binaries out of a wheel that holds a Python module, but packs what it
finds in the folder `data` of pyproject.toml. So each build compiles the commands with the module's
profile, fills that folder from nothing, and hands over. Cargo's output stays in the source tree's
target folder (or in `CARGO_TARGET_DIR`), so a second build compiles only what changed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "wheel.data" / "scripts"
COMPILE_COMMANDS = [
    *("cargo", "build", "--locked", "--release", "--package", "ronde-cli", "--bins"),
    "--message-format=json-render-diagnostics",
]

if shutil.which("cargo") is None:
    # Said here, before the first hook: maturin would fetch a toolchain by itself and not share it.
    raise SystemExit(
        "error: building ronde from source needs Rust, and `cargo` is not on the PATH\n\n"
        "hint: install a Rust toolchain (1.88 or newer), or install a binary wheel of ronde"
    )

# maturin refuses to write even the metadata while its data folder is missing.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the wheel and returns its file name."""
    collect_commands()
    name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the wheel of an editable install and returns its file name."""
    collect_commands()
    name: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def collect_commands() -> None:
    """Compiles the native commands into the folder that maturin packs, and nothing else into it."""
    build = subprocess.run(COMPILE_COMMANDS, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if build.returncode != 0:
        # Cargo has said on stderr what is wrong.
        raise SystemExit(build.returncode)

    shutil.rmtree(SCRIPTS.parent)
    SCRIPTS.mkdir(parents=True)
    for line in build.stdout.splitlines():
        executable = json.loads(line).get("executable")
        if executable:
            shutil.copy2(executable, SCRIPTS)
