"""Runs the test files of `tests/parallel` as jobs of each framework, on 2 to 4 ranks."""

import pytest
from ranks import runner

NOTHING = runner.Job("nothing", "numpy", "raw", [], ())


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize(
    ("job", "size", "transport"),
    [(job, *world) for job in runner.JOBS.values() for world in job.worlds],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_rank_passes(job, size, transport):
    if job.missing:
        pytest.skip(f"{job.missing} is not installed")
    problem = runner.run(job.files, size, transport, job)
    assert problem is None, problem


def test_every_file_is_run():
    files = {file for job in runner.jobs() for file in job.files}
    assert files == set(runner.FOLDER.rglob("test_*.py"))
    assert len(files) > 20


def test_a_job_whose_ranks_run_nothing_does_not_pass(tmp_path):
    (tmp_path / "test_nothing.py").write_text("def helper(): pass\n")
    assert runner.run([tmp_path / "test_nothing.py"], 2, "auto", NOTHING) is not None


def test_a_job_with_one_failing_rank_does_not_pass(tmp_path):
    (tmp_path / "test_one.py").write_text(
        "import os\ndef test_it(): assert os.environ['HOROVOD_RANK'] != '1'\n"
    )
    assert runner.run([tmp_path / "test_one.py"], 2, "auto", NOTHING) is not None


def test_a_hung_job_is_ended(tmp_path):
    (tmp_path / "test_one.py").write_text("import time\ndef test_it(): time.sleep(100)\n")
    problem = runner.run([tmp_path / "test_one.py"], 2, "auto", NOTHING, silence=3)
    assert problem.startswith("no test has ended for 3 s")
