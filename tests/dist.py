"""Installs the results of `make dist` as users would, and runs them: `make dist-check`.

The wheels are installed in small Debian and Ubuntu systems, old and new, that have Python and NumPy
but no compiler; the one for aarch64 runs under qemu. The source distribution and a clone of this
repository are installed in empty virtual environments and compiled with this machine's Rust. In
each, `ronde env` and `ronde test` must succeed, and two ranks must reduce an array.

Needs root privileges, to create and enter the root folders of those systems. They are kept in
`.tools/roots`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
DIST = TOP / "dist"
ROOTS = TOP / ".tools" / "roots"
PACKAGES = "python3,python3-venv,python3-numpy"
# Run by two ranks.
PROGRAM = """
import platform, numpy, horovod.raw as hvd
hvd.init()
reduced = hvd.allreduce(numpy.full(1000, hvd.rank() + 1, "float32"), op=hvd.Sum)
assert (reduced == 3).all(), reduced
libc = " ".join(platform.libc_ver())
print(f"rank {hvd.rank()} of {hvd.size()}: Python {platform.python_version()}, {libc}")
"""
# What must work once Ronde is installed; `$TRIAL` contains the program and the environment.
CHECK = """
set -e
PATH=$TRIAL/venv/bin:$PATH
ronde env
ronde test
horovodrun -np 2 python "$TRIAL/program.py"
"""
# Runs inside a root folder. A compiler there could hide that something is missing.
INSTALL = """
set -e
if command -v cc gcc clang; then echo 'error: this root has a compiler' >&2; exit 1; fi
python3 -m venv --clear --system-site-packages $TRIAL/venv
$TRIAL/venv/bin/pip install --quiet --no-index --find-links $TRIAL $TRIAL/ronde-*.whl
"""
# The mounts disappear with the namespace.
ENTER = """
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TRIAL=/trial chroot "$1" sh -c "$2"
"""
BINFMT = Path("/proc/sys/fs/binfmt_misc")
UBUNTU_KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")


@dataclass(frozen=True)
class System:
    """A release of Debian or Ubuntu for one architecture."""

    suite: str
    machine: str
    components: str = "main"
    keyring: Path = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

    @property
    def architecture(self):
        return {"x86_64": "amd64", "aarch64": "arm64"}[self.machine]

    @property
    def root(self):
        return ROOTS / f"{self.suite}-{self.architecture}"


SYSTEMS = {
    "debian-11": System("bullseye", "x86_64"),
    "debian-12": System("bookworm", "x86_64"),
    "debian-13": System("trixie", "x86_64"),
    "debian-12-aarch64": System("bookworm", "aarch64"),
    "ubuntu-22.04": System("jammy", "x86_64", "main,universe", UBUNTU_KEYRING),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*SYSTEMS, "sdist", "git"]
    # Debian 12 has no package with Ubuntu's keys.
    usual = [name for name in names if name != "ubuntu-22.04"]
    listed = ", ".join(names)
    parser.add_argument(
        "names", nargs="*", default=usual, help=f"any of {listed} [default: all but ubuntu-22.04]"
    )
    wanted = parser.parse_args().names
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"`{unknown[0]}` is none of {listed}")
    if not (DIST / "SHA256SUMS").exists():
        sys.exit("error: `dist/SHA256SUMS` does not exist\nhint: run `make dist` first")
    run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=DIST)
    sources = {"sdist": next(DIST.glob("ronde-*.tar.gz")), "git": f"git+file://{TOP}"}
    for name in wanted:
        print(f"{name}:", flush=True)
        try_source(sources[name]) if name in sources else try_wheel(SYSTEMS[name])


def try_wheel(system):
    (wheel,) = DIST.glob(f"ronde-*_{system.machine}.whl")
    with emulation(system):
        make_root(system)
        trial = system.root / "trial"
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir()
        shutil.copy(wheel, trial)
        # The only dependency, for the oldest supported Python.
        options = ("--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.9")
        run(sys.executable, "-m", "pip", "download", *options, "--dest", trial, "cloudpickle>=2.2")
        (trial / "program.py").write_text(PROGRAM)
        run("unshare", "--mount", "sh", "-ec", ENTER, "sh", system.root, INSTALL + CHECK)


@contextlib.contextmanager
def emulation(system):
    """Makes the kernel run the system's programs with qemu, unless they already run here."""
    if system.machine == platform.machine() or (BINFMT / f"qemu-{system.machine}").exists():
        yield
        return
    formats = Path(f"/usr/lib/binfmt.d/qemu-{system.machine}.conf")
    if os.getuid() != 0 or not formats.exists():
        sys.exit(
            f"error: running a system for {system.machine} needs root privileges and qemu\n"
            "hint: on Debian and Ubuntu, install `qemu-user-static` and `arch-test`"
        )
    mounted = not (BINFMT / "register").exists()
    if mounted:
        run("mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT)
    (BINFMT / "register").write_text(formats.read_text())
    try:
        yield
    finally:
        (BINFMT / f"qemu-{system.machine}").write_text("-1")
        if mounted:
            run("umount", BINFMT)


def make_root(system):
    if system.root.exists():
        return
    if os.getuid() != 0 or shutil.which("mmdebstrap") is None:
        sys.exit(
            "error: creating and entering a Debian root needs root privileges and `mmdebstrap`\n"
            "hint: on Debian and Ubuntu, install `mmdebstrap`"
        )
    if not system.keyring.exists():
        sys.exit(
            f"error: creating a root of `{system.suite}` needs `{system.keyring}`\n"
            "hint: install `debian-archive-keyring` or `ubuntu-keyring`, or copy this file from a\n"
            "system that has it"
        )
    ROOTS.mkdir(parents=True, exist_ok=True)
    unfinished = system.root.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    options = ("--quiet", "--variant=minbase", f"--include={PACKAGES}")
    options += (f"--architectures={system.architecture}", f"--components={system.components}")
    run("mmdebstrap", *options, system.suite, unfinished)
    unfinished.rename(system.root)


def try_source(source):
    """Installs from source into an empty virtual environment, with this machine's Rust."""
    trial = TOP / ".tools" / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    run(sys.executable, "-m", "venv", trial / "venv")
    (trial / "program.py").write_text(PROGRAM)
    # Reuse the crates that are already compiled.
    env = {
        "CARGO_TARGET_DIR": str(TOP / "target"),
        **os.environ,
        "TRIAL": str(trial),
    }
    run(trial / "venv" / "bin" / "pip", "install", "--quiet", "numpy", source, env=env)
    # Run outside this folder, whose Python files are not the installed ones.
    run("sh", "-c", CHECK, env=env, cwd=trial)


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], check=False, **options)
    if done.returncode != 0:
        sys.exit(f"error: `{command[0]}` exited with code {done.returncode}")


if __name__ == "__main__":
    main()
