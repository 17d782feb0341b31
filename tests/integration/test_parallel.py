"""Runs the test files of `tests/parallel` as jobs, on 2 to 4 ranks and over every transport."""

import pytest
from ranks import runner


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize("world", runner.WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
@pytest.mark.parametrize("batch", range(len(runner.BATCHES)))
def test_every_rank_passes(batch, world):
    problem = runner.run(runner.BATCHES[batch], *world)
    assert problem is None, problem


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize("world", runner.CORE_WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def test_the_core_passes_on_other_numbers_of_ranks(world):
    problem = runner.run(runner.CORE_BATCH, *world)
    assert problem is None, problem


def test_every_file_is_run():
    assert set(runner.CORE_BATCH) < set(runner.FILES)
    assert len(runner.FILES) >= 3
    assert sorted(file for batch in runner.BATCHES for file in batch) == runner.FILES


def test_a_job_whose_ranks_run_nothing_does_not_pass(tmp_path):
    (tmp_path / "test_nothing.py").write_text("def helper(): pass\n")
    assert runner.run([tmp_path / "test_nothing.py"], 2, "auto") is not None


def test_a_job_with_one_failing_rank_does_not_pass(tmp_path):
    (tmp_path / "test_one.py").write_text(
        "import os\ndef test_it(): assert os.environ['HOROVOD_RANK'] != '1'\n"
    )
    assert runner.run([tmp_path / "test_one.py"], 2, "auto") is not None


def test_a_job_that_comes_no_further_is_ended(tmp_path):
    (tmp_path / "test_one.py").write_text("import time\ndef test_it(): time.sleep(100)\n")
    problem = runner.run([tmp_path / "test_one.py"], 2, "auto", silence=3)
    assert problem.startswith("no test has ended for 3 s")
