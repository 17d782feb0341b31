"""`make dist` refuses to ship a file that names a folder of the machine it was built on."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
FILES = {
    "horovod/_native.abi3.so": b"\x7fELF\0/cargo/registry/a.rs\0/home/mary/.cargo/b.rs\0",
    "horovod/__init__.py": b"# /home/marygold/ is somebody else's",
}


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(str(TOP / "build_backend"))
    yield __import__("leaks")
    del sys.modules["leaks"]


def wheel(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)


def sdist(path):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(("pack", "name"), [(wheel, "a.whl"), (sdist, "a.tar.gz")])
def test_a_file_that_names_a_folder_of_the_builder_is_found(checks, tmp_path, pack, name):
    pack(tmp_path / name)
    (found,) = checks.leaks(tmp_path / name, ["/home/mary", "/work"])
    assert (
        found == f"{name}: horovod/_native.abi3.so contains `/home/mary`, a folder of this machine"
    )


def test_the_folders_of_the_compiler_and_of_this_checkout_are_looked_for(checks, monkeypatch):
    monkeypatch.setenv("CARGO_HOME", "/elsewhere/cargo")
    folders = checks.private_folders(TOP)
    assert {str(TOP), str(Path.home()), "/elsewhere/cargo"} <= folders.keys()
    assert "--remap-path-prefix=/elsewhere/cargo=/cargo" in checks.remapped(folders)
