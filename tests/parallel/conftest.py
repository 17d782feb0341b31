"""One world per test session: these tests run on all ranks of a job at once.

`run.py` beside this file starts the jobs and says which framework they are for; a plain `pytest`
collects nothing here. Tests that take the `framework` are collected if it has what they need, for
its element types and forms:

- `@pytest.mark.needs("gradients")`: only if it does not lack them;
- `@pytest.mark.over(dtype="floats")`: for each of its floating-point types, as `dtype`;
- `@pytest.mark.over(form="allreduce")`: for each form that it has of allreduce, as `form`.
"""

import os
from itertools import product

import pytest

if "HOROVOD_RANK" in os.environ:
    from frameworks import FEATURES, load

    # Every world may have process sets.
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    FRAMEWORK = load(os.environ["RONDE_TEST_FRAMEWORK"])
else:
    collect_ignore_glob = ["*"]


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*features): only if the framework has them")
    config.addinivalue_line("markers", "over(dtype=, form=): for each of the framework's")


def pytest_generate_tests(metafunc):
    if "framework" not in metafunc.fixturenames:
        return
    needs = [name for mark in metafunc.definition.iter_markers("needs") for name in mark.args]
    assert set(needs) <= set(FEATURES), needs
    over = {}
    for mark in metafunc.definition.iter_markers("over"):
        over.update(mark.kwargs)
    tables = {
        "dtype": FRAMEWORK.dtypes(over.get("dtype", "every")),
        "form": FRAMEWORK.forms.get(over.get("form"), ("plain",)),
    }
    cases = [(FRAMEWORK, *values) for values in product(*(tables[name] for name in over))]
    if not cases or not FRAMEWORK.has(needs):
        # It is taken out below: an empty table would be a test that is skipped.
        cases = [(None,) * (1 + len(over))]
    ids = ["-".join(str(value).replace(" ", "_") for value in case) for case in cases]
    metafunc.parametrize(("framework", *over), cases, ids=ids)


def pytest_collection_modifyitems(config, items):
    gone = [item for item in items if _parameter(item, "framework", 0) is None]
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=gone)


def _parameter(item, name, default):
    return item.callspec.params.get(name, default) if hasattr(item, "callspec") else default


@pytest.fixture(scope="session", autouse=True)
def _world():
    import horovod.raw as hvd

    FRAMEWORK.start()
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _same_seed_everywhere():
    FRAMEWORK.seed()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    item.failed = getattr(item, "failed", False) or outcome.get_result().failed


@pytest.fixture
def leave(request):
    """Ends the world when no rank needs it any more: whoever leaves ends it for all."""
    import horovod.raw as hvd

    def leave():
        # The others may never come to a barrier that follows a failure.
        if hvd.is_initialized() and not getattr(request.node, "failed", False):
            hvd.barrier()
        hvd.shutdown()

    return leave
