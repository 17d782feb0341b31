"""Packs this installation into wheels again: `python -m horovod._wheels [FOLDER]`.

`ronde up` sends them to other hosts, so that these get the very files that run here, without a
package index. One wheel holds Ronde, others hold the packages it needs; the installer's list of
files (`RECORD`) says what belongs to each. Prints a JSON list with the name of each wheel, the
bytes of its files and a digest of them. Without a folder, it writes nothing.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import sys
import sysconfig
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

# Written by installers; they describe this machine, not the package.
OF_INSTALLER = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json")
# The earliest time that an archive can hold.
TIME = (1980, 1, 1, 0, 0, 0)
# Levels above this one take much longer and save little.
COMPRESSION = 1


def main() -> None:
    """Describes Ronde and what it needs, and packs both if an argument names a folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        packages = [distribution("ronde"), *needed(distribution("ronde"))]
        wheels = [pack(package, folder) for package in packages]
    except (PackageNotFoundError, CannotPack) as error:
        sys.exit(str(error))
    print(json.dumps(wheels))


class CannotPack(Exception):
    """The installation is not one that was made from a wheel."""


def needed(package: Distribution) -> list[Distribution]:
    """The packages that a package always needs, and what they need."""
    found = []
    for requirement in package.requires or []:
        if ";" not in requirement:
            name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
            other = distribution(name)
            found += [other, *needed(other)]
    return found


def pack(package: Distribution, folder: Path | None) -> dict[str, object]:
    """Describes one package, and writes its wheel into the folder, if there is one."""
    name = package.metadata["Name"].replace("-", "_")
    title = f"{name}-{package.version}"
    members = sorted(contents(package, title).items())
    tags = re.findall(r"^Tag: (\S+)", package.read_text("WHEEL") or "", re.MULTILINE)
    if not tags:
        raise CannotPack(f"`{name}` was not installed from a wheel")
    wheel = f"{title}-{compressed(tags)}.whl"
    # The list has the checksum of every other file.
    listed = record(members)
    if folder is not None:
        write(folder / wheel, [*members, listed])
    size = sum(len(content) for _, (content, _) in members)
    modes = json.dumps([[member, mode] for member, (_, mode) in members])
    digest = hashlib.sha256(listed[1][0] + modes.encode()).hexdigest()
    return {"name": wheel, "bytes": size, "digest": digest}


def write(path: Path, members: list[tuple[str, tuple[bytes, int]]]) -> None:
    """Writes a wheel."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION) as archive:
        for member, (content, mode) in members:
            about = zipfile.ZipInfo(member, TIME)
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = (0o100000 | mode) << 16
            archive.writestr(about, content)


def contents(package: Distribution, title: str) -> dict[str, tuple[bytes, int]]:
    """Names in the wheel, contents and modes of the files of a package."""
    scripts = os.path.realpath(sysconfig.get_path("scripts"))
    generated = {point.name for point in package.entry_points if point.group == "console_scripts"}
    found = {}
    for file in package.files or []:
        path = Path(str(file.locate()))
        if file.suffix == ".pyc" or file.name in OF_INSTALLER:
            continue
        if not path.is_file():
            raise CannotPack(f"`{path}` is missing, a file of the package `{title}`")
        inside = str(file)
        if ".." in file.parts:
            if os.path.realpath(path.parent) != scripts:
                raise CannotPack(f"`{path}` belongs to `{title}`, but is outside its folder")
            if path.name in generated:
                continue
            inside = f"{title}.data/scripts/{path.name}"
        found[inside] = (path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
    if not any(name.endswith(".dist-info/METADATA") for name in found):
        raise CannotPack(f"`{title}` was not installed from a wheel")
    return found


def record(members: list[tuple[str, tuple[bytes, int]]]) -> tuple[str, tuple[bytes, int]]:
    """The list of files in a wheel, with their checksums."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, (content, _) in members:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(content)])
    folder = next(name.partition("/")[0] for name, _ in members if ".dist-info/" in name)
    rows.writerow([f"{folder}/RECORD", "", ""])
    return f"{folder}/RECORD", (text.getvalue().encode(), 0o644)


def compressed(tags: list[str]) -> str:
    """The tags of a wheel, as they are written in its name."""
    parts = zip(*(tag.split("-") for tag in tags))
    return "-".join(".".join(dict.fromkeys(part)) for part in parts)


if __name__ == "__main__":
    main()
