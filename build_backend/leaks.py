"""Keeps paths of the build machine out of a release.

The compilers write other names for its folders (`remapped`), and the result is still searched for
them (`leaks`), because a C compiler, a build script or a packer may not know those names.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path


def private_folders(root: Path) -> dict[str, str]:
    """Folders of this machine, outermost first, and the names that replace them in binaries."""
    sysroot = subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip()
    cargo = os.environ.get("CARGO_HOME", Path.home() / ".cargo")
    target = os.environ.get("CARGO_TARGET_DIR", root / "target")
    folders = [(Path.home(), "/home"), (sysroot, "/rust"), (cargo, "/cargo")]
    folders += [(root, "/ronde"), (target, "/ronde/target")]
    found = {}
    for folder, name in folders:
        for path in (Path(folder).absolute(), Path(folder).resolve()):
            # A system folder such as `/usr` does not identify the machine.
            if str(path) not in ("/", "/usr", "/usr/local"):
                found[str(path)] = name
    return found


def remapped(folders: dict[str, str]) -> list[str]:
    """The flags that make rustc write those names; if several match, the last one applies."""
    return [f"--remap-path-prefix={folder}={name}" for folder, name in folders.items()]


def leaks(archive: Path, folders: Iterable[str]) -> Iterator[str]:
    """Searches every file of a wheel or a source distribution for the folders."""
    for name, content in members(archive):
        for folder in folders:
            if f"{folder}/".encode() in content:
                yield f"{archive.name}: {name} contains `{folder}`, a folder of this machine"


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the files in a wheel or a source distribution."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
    else:
        with tarfile.open(archive) as sources:
            for member in sources:
                file = sources.extractfile(member)
                yield member.name, file.read() if file else b""
