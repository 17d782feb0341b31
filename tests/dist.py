"""Tries what `make dist` built where users would install it: `make dist-check`.

Each wheel is installed into small Debian systems that have Python and NumPy and no compiler: old
and new ones, and one for aarch64 that qemu runs. There the commands start and two ranks reduce an
array. The source distribution is installed with this machine's Rust. Takes root, for the roots of
those systems are made and entered; they are kept in `.tools/roots` for the next time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
DIST = TOP / "dist"
ROOTS = TOP / ".tools" / "roots"
PACKAGES = "python3,python3-venv,python3-numpy"
# Started by two ranks, and imported by nobody.
PROGRAM = """
import platform, numpy, horovod.raw as hvd
hvd.init()
reduced = hvd.allreduce(numpy.full(1000, hvd.rank() + 1, "float32"), op=hvd.Sum)
assert (reduced == 3).all(), reduced
libc = " ".join(platform.libc_ver())
print(f"rank {hvd.rank()} of {hvd.size()}: Python {platform.python_version()}, {libc}")
"""
# Runs inside of a root, whose own system has no compiler that could hide something missing.
TRIAL = """
set -e
if command -v cc gcc clang; then echo 'error: this root has a compiler' >&2; exit 1; fi
python3 -m venv --clear --system-site-packages /trial/venv
PATH=/trial/venv/bin:$PATH
pip --disable-pip-version-check install --quiet --no-index --find-links /trial /trial/ronde-*.whl
ronde --help > /dev/null
horovodrun -np 2 python /trial/program.py
"""
# Whatever is mounted goes with the namespace.
ENTER = """
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp chroot "$1" sh -c "$2"
"""


@dataclass(frozen=True)
class System:
    """A Debian for one machine."""

    suite: str
    machine: str

    @property
    def architecture(self):
        return {"x86_64": "amd64", "aarch64": "arm64"}[self.machine]

    @property
    def root(self):
        return ROOTS / f"{self.suite}-{self.architecture}"


SYSTEMS = {
    "debian-11": System("bullseye", "x86_64"),
    "debian-12": System("bookworm", "x86_64"),
    "debian-12-aarch64": System("bookworm", "aarch64"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*SYSTEMS, "sdist"]
    parser.add_argument("names", nargs="*", default=names, help=f"of {', '.join(names)}")
    wanted = parser.parse_args().names
    if not (DIST / "SHA256SUMS").exists():
        sys.exit("error: there is no `dist/SHA256SUMS`\nhint: run `make dist` first")
    run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=DIST)
    for name in wanted:
        print(f"{name}:", flush=True)
        try_sdist() if name == "sdist" else try_wheel(SYSTEMS[name])


def try_wheel(system):
    (wheel,) = DIST.glob(f"ronde-*_{system.machine}.whl")
    make_root(system)
    trial = system.root / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    trial.mkdir()
    shutil.copy(wheel, trial)
    # The one dependency, for the oldest Python.
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.9")
    run(sys.executable, "-m", "pip", "download", *options, "--dest", trial, "cloudpickle>=2.2")
    (trial / "program.py").write_text(PROGRAM)
    run("unshare", "--mount", "sh", "-ec", ENTER, "sh", system.root, TRIAL)


def make_root(system):
    if system.root.exists():
        return
    if os.getuid() != 0 or shutil.which("mmdebstrap") is None:
        sys.exit(
            "error: making and entering a Debian root takes root and `mmdebstrap`\n"
            "hint: on Debian and Ubuntu, install `mmdebstrap`, and `arch-test` and "
            "`qemu-user-static` for aarch64"
        )
    ROOTS.mkdir(parents=True, exist_ok=True)
    unfinished = system.root.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    options = ("--quiet", "--variant=minbase", f"--include={PACKAGES}")
    run("mmdebstrap", *options, f"--architectures={system.architecture}", system.suite, unfinished)
    unfinished.rename(system.root)


def try_sdist():
    """Installs the source distribution with nothing but its own files and crates known here."""
    (archive,) = DIST.glob("ronde-*.tar.gz")
    venv = TOP / ".tools" / "sdist"
    python = venv / "bin" / "python"
    run(sys.executable, "-m", "venv", "--clear", venv)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "cloudpickle>=2.2", "maturin>=1.13,<2", "numpy")
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(TOP / "target")),
        "CARGO_NET_OFFLINE": "true",
    }
    run(*pip, "--no-index", "--no-build-isolation", archive, env=env)
    program = venv / "program.py"
    program.write_text(PROGRAM)
    run(venv / "bin" / "horovodrun", "-np", "2", python, program, env=env)


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], check=False, **options)
    if done.returncode != 0:
        sys.exit(f"error: `{command[0]}` ended with {done.returncode}")


if __name__ == "__main__":
    main()
