"""Builds the images of the Dockerfile beside it: `make images`.

Where base images can be pulled, packages come from the package index. Where they cannot, the images
are built on a small Debian made here with debootstrap, which also stands in for the CUDA base, from
wheels that are downloaded here: a build there reaches no index. Without a Docker engine, one is
started, as root (see `engine.py`).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from engine import KEPT, TOP, Engine, Machine, NoEngine, why_no_machine

TARGETS = ("slim", "cpu", "cuda")
WHEELS = KEPT / "wheels"
BASE = "debian:bookworm-slim"
# Made here if that cannot be pulled; the versions of Debian's release.
LOCAL_BASE, SUITE, PYTHON = "ronde-base:bookworm", "bookworm", "3.11"
DEBIAN = "ca-certificates,iproute2,openssh-client,openssh-server,procps,python3,python3-pip"
DEBIAN += ",python3-venv,tini"
# Without the CPU builds of torch, which are in an index of their own.
LOCAL_CPU = "tensorflow-cpu keras scikit-learn tqdm"


@dataclass
class Build:
    """How the images are built."""

    wheel: Path | None = None
    cpu_frameworks: str | None = None
    cuda_frameworks: str | None = None
    cuda_base: str | None = None
    arguments: dict[str, str] = field(default_factory=dict)

    def prepare(self, engine, targets):
        """Chooses the base and collects the wheels."""
        self._take_wheel()
        if pulled(engine, BASE):
            self.arguments["WHEELS"] = relative(WHEELS / "slim")
            self._name_frameworks()
            return
        note(f"`{BASE}` cannot be pulled: building on a Debian made here, from downloaded wheels")
        make_base(engine)
        self.arguments |= {"BASE": LOCAL_BASE, "PIP_OPTIONS": "--no-index"}
        self.arguments["WHEELS"] = relative(WHEELS / "slim")
        download("slim", "numpy cloudpickle>=2.2")
        self.cpu_frameworks = self.cpu_frameworks or LOCAL_CPU
        if "cuda" in targets and self.cuda_base is None:
            note("it stands in for the CUDA base image, too: this `cuda` has no CUDA of its own")
            self.cuda_base = LOCAL_BASE
        # The classic builder also builds the stages of the targets before the one it was asked for.
        self.cpu_frameworks = self.cpu_frameworks if "cpu" in targets else "numpy"
        for target in TARGETS[1:]:
            if target in targets:
                download(target, self._frameworks(target))
            self.arguments[f"{target.upper()}_WHEELS"] = relative(WHEELS / target)
            (WHEELS / target).mkdir(exist_ok=True)
        self._name_frameworks()

    def _take_wheel(self):
        folder = WHEELS / "slim"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("ronde-*.whl"):
            old.unlink()
        if self.wheel is not None:
            shutil.copy(self.wheel, folder)
            return
        uv = Path(sys.executable).with_name("uv")
        run(uv, "build", "--quiet", "--wheel", "--out-dir", folder, TOP)

    def _frameworks(self, target):
        named = {"cpu": self.cpu_frameworks, "cuda": self.cuda_frameworks}[target]
        return named or default_of(f"{target.upper()}_FRAMEWORKS")

    def _name_frameworks(self):
        names = {
            "CPU_FRAMEWORKS": self.cpu_frameworks,
            "CUDA_FRAMEWORKS": self.cuda_frameworks,
            "CUDA_BASE": self.cuda_base,
        }
        self.arguments |= {name: value for name, value in names.items() if value is not None}

    def image(self, engine, target):
        """Builds one target and returns the image's name."""
        name = f"ronde:{target}"
        words = ["build", "-f", TOP / "deploy/docker/Dockerfile", "--target", target, "-t", name]
        for argument, value in self.arguments.items():
            words += ["--build-arg", f"{argument}={value}"]
        # The classic builder takes a base that only this engine has.
        classic = {"DOCKER_BUILDKIT": "0"} if "BASE" in self.arguments else {}
        env = {**os.environ, **classic}
        done = subprocess.run(engine.command(*words, TOP), env=env, check=False)
        if done.returncode != 0:
            sys.exit(f"error: the image `{name}` does not build; the lines above say why")
        return name


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=TARGETS, help="slim, cpu, cuda [all]")
    parser.add_argument(
        "--wheel", type=Path, help="the wheel to install [built from this checkout]"
    )
    parser.add_argument("--cpu-frameworks", help="packages of the image `cpu`")
    parser.add_argument("--cuda-frameworks", help="packages of the image `cuda`")
    parser.add_argument("--cuda-base", help="base image of `cuda`")
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
    build.prepare(engine, targets)
    for target in [name for name in TARGETS if name in targets]:
        name = build.image(engine, target)
        size = int(engine.must("image", "inspect", "-f", "{{.Size}}", name))
        print(f"{name}: {size / 1e6:.0f} MB", flush=True)


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


def download(target, packages):
    """Puts wheels of the packages, and of all they need, into the target's folder."""
    folder = WHEELS / target
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / "packages.txt"
    if listed.exists() and listed.read_text() == packages:
        return
    note(f"downloading wheels for `{target}`: {packages}")
    machine = platform.machine()
    places = [f"manylinux_2_{minor}_{machine}" for minor in range(5, 37)]
    places += [f"manylinux2014_{machine}", f"linux_{machine}"]
    options = ["--quiet", "--only-binary=:all:", f"--python-version={PYTHON}", "--dest", folder]
    options += [f"--platform={place}" for place in places]
    run(sys.executable, "-m", "pip", "download", *options, *packages.split())
    listed.write_text(packages)


def default_of(argument):
    """The default of an argument of the Dockerfile."""
    for line in (TOP / "deploy/docker/Dockerfile").read_text().splitlines():
        if line.startswith(f"ARG {argument}="):
            return line.partition("=")[2].strip('"')
    raise LookupError(argument)


def relative(path):
    return str(path.relative_to(TOP))


def note(text):
    print(f"note: {text}", file=sys.stderr, flush=True)


def run(*command, quiet=False):
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run([str(word) for word in command], stdout=output, check=False)
    if done.returncode != 0:
        sys.exit(f"error: `{command[0]}` exited with code {done.returncode}")


if __name__ == "__main__":
    main()
