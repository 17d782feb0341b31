"""Builds the images of the Dockerfile beside it: `make images`.

Where base images can be pulled, packages come from the package index. Where they cannot, the images
are built on a small Debian made here with debootstrap, which also stands in for the CUDA base, from
wheels that are downloaded here: a build there reaches no index. Without a Docker engine, one is
started, as root (see `engine.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine import KEPT, TOP, Engine, Machine, NoEngine, why_no_machine

TARGETS = ("slim", "cpu", "cuda")
WHEELS, CONTEXT = KEPT / "wheels", KEPT / "context"
BASE = "debian:bookworm-slim"
# Made here if that cannot be pulled; the versions of Debian's release.
LOCAL_BASE, SUITE, PYTHON = "ronde-base:bookworm", "bookworm", "3.11"
DEBIAN = "ca-certificates,iproute2,openssh-client,openssh-server,procps,python3,python3-pip"
DEBIAN += ",python3-venv,tini"
# What every image has, besides Ronde.
NEEDED = "numpy cloudpickle"
# In place of frameworks, where they are not wanted.
SMALL = "packaging"
# Without the CPU builds of torch, which are in an index of their own.
LOCAL_CPU = "tensorflow-cpu keras scikit-learn tqdm"


@dataclass
class Build:
    """How the images are built."""

    wheel: Path | None = None
    cpu_frameworks: str | None = None
    cuda_frameworks: str | None = None
    cuda_base: str | None = None
    cpu_index: str | None = None

    def prepare(self, engine):
        """Takes Ronde's wheel, and chooses the base and where packages come from."""
        self._take_wheel()
        self.from_index = pulled(engine, BASE)
        if self.from_index:
            return
        note(f"`{BASE}` cannot be pulled: building on a Debian made here, from downloaded wheels")
        make_base(engine)
        self.cpu_frameworks = self.cpu_frameworks or LOCAL_CPU
        if self.cuda_base is None:
            note("it stands in for the CUDA base image, too: that `cuda` has no CUDA of its own")
            self.cuda_base = LOCAL_BASE

    def _take_wheel(self):
        folder = WHEELS / "ronde"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if self.wheel is not None:
            shutil.copy(self.wheel, folder)
            return
        uv = Path(sys.executable).with_name("uv")
        run(uv, "build", "--quiet", "--wheel", "--out-dir", folder, TOP)

    def image(self, engine, target):
        """Builds one target and returns the image's name."""
        name = f"ronde:{target}"
        arguments = {"WHEELS": "wheels/ronde", **self._packages(target)}
        if not self.from_index:
            arguments |= {"BASE": LOCAL_BASE, "PIP_OPTIONS": "--no-index"}
        named = {"CUDA_BASE": self.cuda_base, "CPU_INDEX": self.cpu_index}
        arguments |= {key: value for key, value in named.items() if value is not None}
        dockerfile = CONTEXT / "deploy/docker/Dockerfile"
        words = ["build", "-f", dockerfile, "--target", target, "-t", name]
        for argument, value in arguments.items():
            words += ["--build-arg", f"{argument}={value}"]
        # The classic builder takes a base that only this engine has.
        env = os.environ if self.from_index else {**os.environ, "DOCKER_BUILDKIT": "0"}
        if subprocess.run(engine.command(*words, CONTEXT), env=env, check=False).returncode != 0:
            sys.exit(f"error: the image `{name}` does not build; the lines above say why")
        return name

    def _packages(self, target):
        """Prepares the context of a target; returns the arguments about packages."""
        frameworks = {"cpu": self.cpu_frameworks, "cuda": self.cuda_frameworks}
        # The classic builder builds the stages of other targets, too: those stay small.
        arguments = {
            f"{other.upper()}_FRAMEWORKS": SMALL for other in frameworks if other != target
        }
        if frameworks.get(target) is not None:
            arguments[f"{target.upper()}_FRAMEWORKS"] = frameworks[target]
        folders = [WHEELS / "ronde"]
        if not self.from_index:
            packages = {"slim": NEEDED, "cpu": SMALL, "cuda": SMALL}
            if target in frameworks:
                named = frameworks[target] or default_of(f"{target.upper()}_FRAMEWORKS")
                packages[target] = named if target == "cpu" else f"{NEEDED} {named}"
            for other, wanted in packages.items():
                folders.append(download(wanted, self.cpu_index if other == "cpu" else None))
                arguments[f"{other.upper()}_WHEELS"] = f"wheels/{folders[-1].name}"
        make_context(folders)
        return arguments


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=TARGETS, help="slim, cpu, cuda [all]")
    parser.add_argument(
        "--wheel", type=Path, help="the wheel to install [built from this checkout]"
    )
    parser.add_argument("--cpu-frameworks", help="packages of the image `cpu`")
    parser.add_argument("--cuda-frameworks", help="packages of the image `cuda`")
    parser.add_argument("--cuda-base", help="base image of `cuda`")
    parser.add_argument("--cpu-index", help="address of PyTorch's index of CPU builds, for `cpu`")
    parser.add_argument("--own-engine", action="store_true", help="start one even if there is one")
    options = vars(parser.parse_args())
    targets, own = options.pop("targets"), options.pop("own_engine")
    if unknown := [name for name in targets if name not in TARGETS]:
        parser.error(f"`{unknown[0]}` is none of {', '.join(TARGETS)}")
    try:
        with own_engine() if own else some_engine() as engine:
            build_all(engine, Build(**options), targets)
    except NoEngine as error:
        sys.exit(
            f"error: there is no Docker engine: {error}\nhint: install Docker, or run this as root"
        )


def build_all(engine, build, targets):
    """Builds the targets and prints how large they are."""
    build.prepare(engine)
    for target in [name for name in TARGETS if name in targets]:
        name = build.image(engine, target)
        size = int(engine.must("image", "inspect", "-f", "{{.Size}}", name))
        print(f"{name}: {size / 1e6:.0f} MB", flush=True)
    if isinstance(engine, Machine):
        # What newer builds have replaced; the steps of the last day make the next build quick.
        engine.must("image", "prune", "-f", "--filter", "until=24h", limit=300)


def some_engine():
    """The engine of this machine, or one of our own; both for `with`."""
    engine = Engine()
    if shutil.which("docker") and engine.answers():
        return Borrowed()
    note("there is no Docker engine here: starting one, which ends with this command")
    return own_engine()


def own_engine():
    """An engine of our own, for `with`."""
    if why := why_no_machine():
        raise NoEngine(why)
    return Machine("node7")


class Borrowed(Engine):
    """The engine of this machine, which keeps running."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def pulled(engine, image):
    """Whether the engine has the image, or could pull it."""
    return engine.has(image) or engine.run("pull", "-q", image, limit=300).returncode == 0


def make_base(engine):
    """Gives the engine a small Debian with everything that the Dockerfile would install."""
    if engine.has(LOCAL_BASE):
        return
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit(
            "error: making a base image takes root and `debootstrap`\nhint: install debootstrap"
        )
    root = KEPT / "root"
    if not (root / "usr/bin/tini").exists():
        shutil.rmtree(root, ignore_errors=True)
        run("debootstrap", "--variant=minbase", f"--include={DEBIAN}", SUITE, root, quiet=True)
        for waste in (
            *root.glob("var/cache/apt/archives/*.deb"),
            *root.glob("var/lib/apt/lists/*_*"),
        ):
            waste.unlink()
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        engine.must("import", "-", LOCAL_BASE, stdin=tar.stdout, limit=300)


def make_context(folders):
    """Collects what the Dockerfile copies, and only the wheels that this build needs."""
    shutil.rmtree(CONTEXT, ignore_errors=True)
    for name in ("deploy/docker", "examples"):
        shutil.copytree(TOP / name, CONTEXT / name, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in set(folders):
        shutil.copytree(folder, CONTEXT / "wheels" / folder.name, copy_function=os.link)


def download(packages, index=None):
    """The folder with wheels of the packages and of all they need, downloaded once."""
    folder = WHEELS / hashlib.sha256(packages.encode()).hexdigest()[:12]
    if folder.exists():
        return folder
    note(f"downloading wheels: {packages}")
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    machine = platform.machine()
    places = [f"manylinux_2_{minor}_{machine}" for minor in range(5, 37)]
    places += [f"manylinux2014_{machine}", f"linux_{machine}"]
    options = ["--quiet", "--only-binary=:all:", f"--python-version={PYTHON}", "--dest", unfinished]
    options += [f"--platform={place}" for place in places]
    options += ["--extra-index-url", index] if index else []
    run(sys.executable, "-m", "pip", "download", *options, *packages.split())
    unfinished.rename(folder)
    return folder


def default_of(argument):
    """The default of an argument of the Dockerfile."""
    for line in (TOP / "deploy/docker/Dockerfile").read_text().splitlines():
        if line.startswith(f"ARG {argument}="):
            return line.partition("=")[2].strip('"')
    raise LookupError(argument)


def note(text):
    print(f"note: {text}", file=sys.stderr, flush=True)


def run(*command, quiet=False):
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run([str(word) for word in command], stdout=output, check=False)
    if done.returncode != 0:
        sys.exit(f"error: `{command[0]}` exited with code {done.returncode}")


if __name__ == "__main__":
    main()
