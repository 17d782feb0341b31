"""One world per test session: these tests run on all ranks of a job at once.

`run.py` in this folder starts the jobs and sets which framework they test; a plain `pytest`
collects nothing here. Tests that take the `framework` fixture are collected if the framework has
what they need, for its element types and forms:

- `@pytest.mark.needs("gradients")`: only if the framework has them;
- `@pytest.mark.over(dtype="floats")`: for each of its floating-point types, as `dtype`;
- `@pytest.mark.over(form="allreduce")`: for each form of allreduce, as `form`.
"""

import os
from itertools import product

import pytest

if "HOROVOD_RANK" in os.environ:
    from frameworks import FEATURES, load

    # Tests may add process sets in every world.
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    FRAMEWORK = load(os.environ["RONDE_TEST_FRAMEWORK"])
else:
    collect_ignore_glob = ["*"]


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*features): only if the framework has them")
    config.addinivalue_line(
        "markers", "over(dtype=, form=): for each type or form of the framework"
    )


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
        # Deselected below; without parameters, pytest would report it as skipped.
        cases = [(None,) * (1 + len(over))]
    ids = ["-".join(str(value).replace(" ", "_") for value in case) for case in cases]
    metafunc.parametrize(("framework", *over), cases, ids=ids)


def pytest_collection_modifyitems(config, items):
    deselected = [item for item in items if _parameter(item, "framework", 0) is None]
    items[:] = [item for item in items if item not in deselected]
    config.hook.pytest_deselected(items=deselected)


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
    """Ends the world once no rank needs it: the first rank to leave ends it for all."""
    import horovod.raw as hvd

    def leave():
        # After a failure the other ranks may never reach a barrier.
        if hvd.is_initialized() and not getattr(request.node, "failed", False):
            hvd.barrier()
        hvd.shutdown()

    return leave
