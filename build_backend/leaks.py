"""Keeps folders of the machine that builds a release out of the release.

The compilers write other names for them (`remapped`), and what was built is searched for them all
the same (`leaks`): a C compiler, a build script or a packer may know nothing of those names.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path


def private_folders(root: Path) -> dict[str, str]:
    """Folders of this machine, the widest first, and the names that stand for them in binaries."""
    sysroot = subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip()
    cargo = os.environ.get("CARGO_HOME", Path.home() / ".cargo")
    target = os.environ.get("CARGO_TARGET_DIR", root / "target")
    folders = [(Path.home(), "/home"), (sysroot, "/rust"), (cargo, "/cargo")]
    folders += [(root, "/ronde"), (target, "/ronde/target")]
    found = {}
    for folder, name in folders:
        for path in (Path(folder).absolute(), Path(folder).resolve()):
            # A system folder such as `/usr` says nothing about whose machine it is.
            if str(path) not in ("/", "/usr", "/usr/local"):
                found[str(path)] = name
    return found


def remapped(folders: dict[str, str]) -> list[str]:
    """The flags that make rustc write those names; where several fit, the last one counts."""
    return [f"--remap-path-prefix={folder}={name}" for folder, name in folders.items()]


def leaks(archive: Path, folders: Iterable[str]) -> Iterator[str]:
    """Looks for the folders in every file of a wheel or a source distribution."""
    for name, content in members(archive):
        for folder in folders:
            if f"{folder}/".encode() in content:
                yield f"{archive.name}: {name} names `{folder}`, a folder of this machine"


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a wheel or a source distribution, and what they hold."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
    else:
        with tarfile.open(archive) as sources:
            for member in sources:
                file = sources.extractfile(member)
                yield member.name, file.read() if file else b""
