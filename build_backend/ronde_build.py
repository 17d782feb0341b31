"""Builds the wheel: maturin packs the Python files and the native module; this adds the rest.

maturin omits a workspace's binaries, and libraries that are not Python modules, from a wheel with a
Python module, but packs what it finds in the folder `data` of pyproject.toml. So each build
compiles the module, the commands and the library that TensorFlow loads, recreates that folder, and
then calls maturin, which has little left to compile. Cargo's output stays in the target folder of
the source tree (or in `CARGO_TARGET_DIR`), so a second build compiles only what changed.

The setting `target` of a build, such as `aarch64-unknown-linux-gnu.2.17`, compiles with zig for
that architecture and that glibc; `dist.py` uses it. Without it, the wheel is for this machine.
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
from ronde_sbom import sbom

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
PARTS = ROOT / "wheel-parts"
DATA = PARTS / "data"
SBOM = PARTS / "ronde.cdx.json"
SCRIPTS = DATA / "scripts"
# Next to the package's own files, wherever those are installed.
LIBRARIES = DATA / "platlib" / "horovod"
# The module is among them because Cargo selects the features of dependencies for all packages of a
# command together: without it, maturin's command would compile most dependencies again.
COMPILE = [
    *("--locked", "--release", "--lib", "--bins"),
    *("--package", "ronde-cli", "--package", "ronde-py", "--package", "ronde-tensorflow"),
    "--message-format=json-render-diagnostics",
]

if shutil.which("cargo") is None:
    # Checked before the first hook: maturin would fetch a toolchain and not share it.
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
    target = (config_settings or {}).get("target")
    collect_extras(target)
    if target:
        triple, _, glibc = target.partition(".")
        tag = f"manylinux_{glibc.replace('.', '_')}"
        config_settings = {"build-args": f"--zig --target {triple} --compatibility {tag}"}
    name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the wheel of an editable install and returns its file name."""
    collect_extras(target=None)
    name: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def collect_extras(target: str | None) -> None:
    """Compiles the commands and the library into the folder that maturin packs, and only them."""
    command = ["zigbuild", "--target", target] if target else ["build"]
    build = subprocess.run(
        ["cargo", *command, *COMPILE], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    if build.returncode != 0:
        # Cargo has printed the error to stderr.
        raise SystemExit(build.returncode)

    shutil.rmtree(DATA)
    SCRIPTS.mkdir(parents=True)
    LIBRARIES.mkdir(parents=True)
    for line in build.stdout.splitlines():
        artifact = json.loads(line)
        if artifact.get("executable"):
            shutil.copy2(artifact["executable"], SCRIPTS)
        elif artifact.get("target", {}).get("name") == "ronde_tensorflow":
            for file in artifact["filenames"]:
                shutil.copy2(file, LIBRARIES)
    SBOM.write_text(sbom(ROOT, target.partition(".")[0] if target else None))
