"""The installed wheel contains the whole package and the commands, and nothing else."""

import json
import os
import subprocess
from importlib.metadata import distribution, files, metadata
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "python"
NATIVE = {"horovod/_native.abi3.so", "horovod/libronde_tensorflow.so"}
COMMANDS = ["horovodrun", "ronde"]


def packed():
    """The files of the installed distribution, without compiled bytecode."""
    return [path for path in files("ronde") if path.suffix != ".pyc"]


def test_the_package_holds_every_source_file_and_the_native_libraries():
    found = {path.as_posix() for path in packed() if path.parts[0] == "horovod"}
    sources = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*")
        if path.suffix in {".py", ".pyi", ".typed"}
    }
    assert {"horovod/py.typed", "horovod/_native.pyi"} <= sources
    assert found == sources | NATIVE


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_native_and_runs(command):
    (path,) = [path.locate() for path in packed() if path.name == command]
    assert path.read_bytes().startswith(b"\x7fELF")
    assert os.access(path, os.X_OK)
    subprocess.run([path, "--help"], check=True, stdout=subprocess.DEVNULL)


def test_nothing_else_is_installed():
    outside = [path for path in packed() if path.parts[0] != "horovod"]
    commands = sorted(path.name for path in outside if path.parent.name == "bin")
    others = {path.parts[0] for path in outside if path.parent.name != "bin"}
    assert commands == COMMANDS
    assert others == {f"ronde-{distribution('ronde').version}.dist-info"}


def test_the_metadata_is_complete():
    found = metadata("ronde")
    assert found["Requires-Python"] == ">=3.9"
    assert found["License-Expression"] == "Apache-2.0"
    assert "torch" in found.get_all("Provides-Extra")


def test_the_bill_of_materials_lists_every_crate_and_no_local_paths():
    (path,) = [path for path in packed() if path.parent.name == "sboms"]
    text = path.read_text()
    listed = {component["name"] for component in json.loads(text)["components"]}
    # One crate of the module alone, one of the commands alone, and one of ours.
    assert {"pyo3", "clap", "ronde-tensorflow"} <= listed
    assert "file:" not in text


def test_torch_finds_the_backend_through_its_entry_point():
    (found,) = [
        point
        for point in distribution("ronde").entry_points
        if point.group == "torch.distributed.backends"
    ]
    assert found.name == "ronde"
    assert callable(found.load())
