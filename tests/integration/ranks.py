"""Loads `tests/parallel/run.py`, which runs test files on all ranks of a job, as a module.

It is a program in a folder whose modules `pytest` must not see from here, so it is loaded by path.
"""

import importlib.util
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("parallel_run", TESTS / "parallel" / "run.py")
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)
