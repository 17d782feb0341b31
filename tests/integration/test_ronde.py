"""`ronde test` and `ronde env`, with the packages that are installed here."""

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
