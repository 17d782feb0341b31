"""Runs the test files of `tests/parallel` as jobs, on 2 and 4 ranks and over every transport."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "parallel" / "run.py"
spec = importlib.util.spec_from_file_location("parallel_run", SCRIPT)
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize("transport", runner.TRANSPORTS)
@pytest.mark.parametrize("size", runner.SIZES)
@pytest.mark.parametrize("file", runner.FILES, ids=lambda file: file.stem)
def test_every_rank_passes(file, size, transport):
    problem = runner.run(file, size, transport)
    assert problem is None, problem


def test_there_are_files_to_run():
    assert len(runner.FILES) >= 3


def test_a_job_whose_ranks_run_nothing_does_not_pass(tmp_path):
    (tmp_path / "test_nothing.py").write_text("def helper(): pass\n")
    assert runner.run(tmp_path / "test_nothing.py", 2, "auto") is not None


def test_a_job_with_one_failing_rank_does_not_pass(tmp_path):
    (tmp_path / "test_one.py").write_text(
        "import os\ndef test_it(): assert os.environ['HOROVOD_RANK'] != '1'\n"
    )
    assert runner.run(tmp_path / "test_one.py", 2, "auto") is not None
