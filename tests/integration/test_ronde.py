"""`ronde test` and `ronde env` with what is installed here, and what `ronde` says of GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RONDE = Path(sys.executable).with_name("ronde")
pytestmark = pytest.mark.timeout(240)


def ronde(*arguments, **variables):
    env = {**os.environ, **variables}
    return subprocess.run([RONDE, *arguments], env=env, text=True, capture_output=True, check=False)


def test_the_self_test_covers_what_is_installed():
    done = ronde("test", "collectives", "sockets", "torch")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if " ok " in line]
    assert [line[0] for line in lines] == ["collectives", "over", "PyTorch"]
    assert "Everything that was tried works." in done.stdout


def test_the_self_test_names_what_is_broken(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libmissing.so.1')")
    done = ronde("test", "torch", "collectives", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "  collectives        ok " in done.stdout
    assert "  PyTorch            FAILED " in done.stdout
    assert "ImportError: libmissing.so.1" in done.stdout
    assert "error: PyTorch failed" in done.stderr


def test_the_self_test_names_its_parts():
    done = ronde("test", "tensorfow")
    assert done.returncode == 2
    assert "there is no part `tensorfow`" in done.stderr
    assert "collectives, sockets, torch, tensorflow" in done.stderr


def test_the_report_has_versions_and_settings_but_no_secrets():
    report = ronde("env", HOROVOD_LOG_LEVEL="debug", RONDE_SECRET="0f" * 32).stdout
    rows = {line.split()[0]: line for line in report.splitlines()}
    assert f"{sys.version.split()[0]}, " in rows["Python"]
    assert "torch " in rows["Packages"]
    assert "HOROVOD_LOG_LEVEL=debug" in rows["Settings"]
    assert "RONDE_SECRET=(not shown)" in report
    assert "0f0f" not in report
    document = json.loads(ronde("env", "--json", NCCL_DEBUG="INFO").stdout)
    assert document["machine"]["python"]["packages"]["torch"]
    assert ["NCCL_DEBUG", "INFO"] in document["settings"]


@pytest.fixture
def without_tool(tmp_path):
    """Variables without an `nvidia-smi`: the driver, here a stand-in, lists the GPUs."""
    return {"PATH": str(tmp_path)}


def test_the_doctor_asks_the_driver_if_nvidia_smi_is_missing(standin_gpu, without_tool):
    libraries = {"RONDE_CUDA": standin_gpu, "RONDE_NCCL": standin_gpu, **without_tool}
    standin = "devices=2,memory=3G,nccl=22809"
    done = ronde("doctor", "--json", "-H", "localhost:3", RONDE_STANDIN_GPU=standin, **libraries)
    document = json.loads(done.stdout)
    gpu = {"name": "Ronde stand-in GPU", "memory_bytes": 3 << 30, "free_bytes": None}
    assert document["hosts"][0]["facts"]["gpus"] == {
        "devices": [gpu, gpu],
        "visible": None,
        "driver": None,
        "cuda": {"version": 13000, "path": standin_gpu, "problem": None},
        "nccl": {"version": 22809, "path": standin_gpu, "problem": None},
        "unknown": None,
        "problem": None,
    }
    finding = next(each for each in document["findings"] if "GPU" in each["what"])
    assert finding["what"] == "it has 3 slots, but only 2 GPUs"
    assert "take turns" in finding["fix"] and "before NCCL 2.30" in finding["fix"]
    text = ronde("doctor", **libraries).stdout
    assert "Ronde stand-in GPU" in text
    assert f"13.0  2.30.7  {standin_gpu}" in text


def test_the_doctor_names_old_libraries_and_what_to_do(standin_gpu, without_tool):
    libraries = {"RONDE_CUDA": standin_gpu, "RONDE_NCCL": standin_gpu, **without_tool}
    for standin, what, fix in [
        ("driver=11020", "NVIDIA driver is too old: it supports CUDA 11.2", "update NVIDIA's"),
        ("nccl=21304", "NCCL 2.13.4 (`", "nvidia-nccl-cu13"),
        ("fail=cuInit:1+:804", "its NVIDIA driver fails: CUDA error 804 in cuInit", "update"),
    ]:
        done = ronde("doctor", "--json", RONDE_STANDIN_GPU=standin, **libraries)
        assert done.returncode == 0, done.stdout + done.stderr
        findings = json.loads(done.stdout)["findings"]
        assert any(what in each["what"] and fix in each["fix"] for each in findings), findings


def test_a_machine_without_gpus_has_none_and_nothing_to_fix(without_tool):
    done = ronde("doctor", RONDE_CUDA="/no/such/driver", **without_tool)
    assert done.returncode == 0
    assert " none " in done.stdout.splitlines()[6], done.stdout
    assert "GPU memory" not in done.stdout and "NVIDIA" not in done.stdout


@pytest.mark.parametrize(
    ("standin", "mark"), [("", "X"), ("nccl=21304", " "), ("driver=11020", " ")]
)
def test_the_build_has_nccl_if_it_can_be_used(standin_gpu, standin, mark):
    env = {**os.environ, "RONDE_CUDA": standin_gpu, "RONDE_NCCL": standin_gpu}
    env["RONDE_STANDIN_GPU"] = standin
    command = [RONDE.with_name("horovodrun"), "--check-build", "--verbose"]
    report = subprocess.check_output(command, env=env, text=True)
    assert f"    [{mark}] NCCL\n" in report
    assert f", {standin_gpu}\n" in report.split("GPUs:")[1]
