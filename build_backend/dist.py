"""Builds the files of a release into `dist`, and checks them: `make dist`.

They are a wheel for each supported architecture, compiled with zig against an old glibc, the source
distribution, the bill of materials of each wheel, and the checksums of all of them. The build fails
if auditwheel would give a wheel a newer tag, or if a file contains a path of the build machine.
The only time in the archives is that of the commit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

# The build tools are next to this interpreter; the backend looks for them on the PATH.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

import ronde_build
from leaks import leaks, members, private_folders, remapped
from ronde_build import ROOT

MACHINES = ("x86_64", "aarch64")
# The oldest glibc that Rust's standard library runs on.
GLIBC = "2.17"
DIST = ROOT / "dist"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "machines", nargs="*", default=MACHINES, help="architectures to build for [default: all]"
    )
    wanted = parser.parse_args().machines
    os.chdir(ROOT)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    folders = private_folders(ROOT)
    prepare_environment(folders)

    possible = [machine for machine in wanted if can_compile_for(machine)]
    wheels = [build_wheel(machine) for machine in possible]
    files = [*wheels, DIST / ronde_build.build_sdist(str(DIST))]
    problems = [problem for wheel in wheels for problem in wrong_tag(wheel)]
    problems += [problem for file in files for problem in leaks(file, folders)]
    problems += [problem for wheel in wheels for problem in keep_sbom(wheel)]
    problems += [
        f"cannot build a wheel for {machine}: Rust's standard library for it is not installed\n\n"
        f"hint: `rustup target add {triple(machine)}` (with Debian's own Rust, the package\n"
        "`libstd-rust-dev` of that architecture), or leave it out with `make dist MACHINES=…`"
        for machine in wanted
        if machine not in possible
    ]
    sums = [f"{digest(file)}  {file.name}\n" for file in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")
    if problems:
        sys.exit("\n".join(f"error: {problem}" for problem in problems))


def triple(machine: str) -> str:
    return f"{machine}-unknown-linux-gnu"


def can_compile_for(machine: str) -> bool:
    """Whether Rust's standard library for an architecture is there; rustup may install it first."""
    if not has_standard_library(machine) and shutil.which("rustup"):
        subprocess.run(["rustup", "target", "add", triple(machine)], check=False)
    return has_standard_library(machine)


def has_standard_library(machine: str) -> bool:
    command = ["rustc", "--print", "target-libdir", "--target", triple(machine)]
    folder = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return bool(folder) and any(Path(folder).glob("libstd-*"))


def prepare_environment(folders: dict[str, str]) -> None:
    """Keeps paths of this machine out of binaries, and times but the commit's out of archives."""
    # maturin contains cargo-zigbuild, too. Without this, it would link with a script of its own,
    # and Cargo compiles everything again if the linker has another name.
    linker = str(Path(sys.executable).with_name("cargo-zigbuild"))
    os.environ.update({"CARGO_BIN_EXE_cargo-zigbuild": linker})
    os.environ.pop("RUSTFLAGS", None)
    os.environ["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join(remapped(folders))
    if "SOURCE_DATE_EPOCH" not in os.environ:
        command = ["git", "-c", "safe.directory=*", "log", "-1", "--format=%ct"]
        os.environ["SOURCE_DATE_EPOCH"] = subprocess.check_output(command, text=True).strip()


def build_wheel(machine: str) -> Path:
    target = f"{triple(machine)}.{GLIBC}"
    return DIST / ronde_build.build_wheel(str(DIST), {"target": target})


def wrong_tag(wheel: Path) -> Iterator[str]:
    """Asks auditwheel, which checks every binary in the wheel, whether its tag is right."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    report = json.loads(subprocess.check_output(command))
    found = re.match(r"manylinux_2_(\d+)_", report["overall_tag"])
    if found is None or int(found[1]) > int(GLIBC.partition(".")[2]):
        yield f"{wheel.name}: auditwheel reports `{report['overall_tag']}`"


def keep_sbom(wheel: Path) -> Iterator[str]:
    """Copies the wheel's bill of materials next to it, and validates it with CycloneDX's schema."""
    (text,) = [content for name, content in members(wheel) if name.endswith(".cdx.json")]
    wheel.with_suffix(".cdx.json").write_bytes(text)
    wrong = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text.decode())
    if wrong is not None:
        yield f"{wheel.name}: its bill of materials is not valid: {wrong}"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
