"""Every public name is documented in the source and in `help()`; the reference is made from it."""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import docstrings
import pytest
import shown

import horovod

PACKAGE = docstrings.Package(Path(horovod.__file__).parent)
# The groups that can be imported together, and the packages that they need.
GROUPS = {
    "plain": [],
    "torch": ["torch"],
    "tensorflow": ["tensorflow", "keras"],
    "jax": ["jax", "optax"],
    "mxnet": ["mxnet"],
    "ray": ["ray"],
}
NAMES = [
    (module, name)
    for module in PACKAGE.public_modules()
    for name in PACKAGE.exports(module)
    if not name.startswith("_")
]
SENTINEL = object()
# Arguments that all frameworks describe alike in functions of the same name.
SHARED = ("average", "postscale_factor", "prescale_factor", "process_set", "root_rank", "splits")


def test_the_modules_that_users_import_are_checked():
    looked_at = {module for module, _ in NAMES}
    frameworks = ("jax", "keras", "lightning", "mxnet", "tensorflow", "torch")
    folders = {f"horovod.{name}" for name in frameworks}
    others = {"horovod", "horovod.raw", "horovod.data", "horovod.tensorflow.keras"}
    elastic = {"horovod.torch.elastic", "horovod.common.elastic", "horovod.keras.elastic"}
    assert looked_at >= folders | others | elastic
    assert ("horovod", "run") in NAMES and ("horovod.torch", "rank") in NAMES
    assert len(list(PACKAGE.functions())) > 200


@pytest.mark.parametrize("module", PACKAGE.public_modules())
def test_every_public_name_is_documented(module):
    faults = []
    if ast.get_docstring(PACKAGE.trees[module]) is None:
        faults.append(f"{module}: no docstring")
    for name in PACKAGE.exports(module):
        found = PACKAGE.resolve(module, name)
        assert found is not None, f"{module}.{name} cannot be found without running the package"
        faults += [f"{module}.{name}: {each}" for each in docstrings.faults_of(PACKAGE, found)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def f() -> None: pass", "no docstring"),
        ('def f() -> None:\n    """Thing."""', "the first line is not a sentence"),
        ('def f(a: int) -> None:\n    """Does it well."""', "no description of `a`"),
        ('def f(*a: int) -> None:\n    """Does it well."""', "no description of `*a`"),
        ('def f() -> int:\n    """Does it well."""', "no `Returns:`"),
        (
            'def f() -> None:\n    """Does it well.\n\n    Returns:\n        It.\n    """',
            "it returns nothing",
        ),
        (
            "def f(a: int = 1) -> None:\n"
            '    """Does it well.\n\n    Args:\n        a: It.\n    """',
            "no description of the default of `a`",
        ),
        (
            'def f() -> None:\n    """Does it well.\n\n    Args:\n        a: It.\n    """',
            "`a` is not an argument",
        ),
        (
            "def f(a: int, b: int) -> None:\n"
            '    """Does it well.\n\n    Args:\n        b: It.\n        a: It.\n    """',
            "not in the order of the signature",
        ),
    ],
)
def test_incomplete_docstrings_are_found(source, fault):
    node = ast.parse(source).body[0]
    assert fault in "\n".join(docstrings.function_faults(node, is_method=False))


def test_frameworks_describe_shared_arguments_alike():
    found = defaultdict(lambda: defaultdict(list))
    for module, name, node in PACKAGE.functions():
        described = docstrings.arguments_of(ast.get_docstring(node) or "")
        for argument in set(SHARED) & described.keys():
            # Frameworks use their own word for tensors, and their own defaults, from Horovod.
            plain = re.sub(r"\btensors?\b|\barrays?\b", "array", described[argument])
            words = re.sub(
                r" ?(: a sequence of integers or|, as|: 1-D, int32).*?(?=[.(])", "", plain
            )
            default = re.search(r"\(default: (\w+)", words)
            key = (name, argument, default and default[1], "process_set" in described)
            found[key][words].append(module)
    different = {key: dict(texts) for key, texts in found.items() if len(texts) > 1}
    assert not different
    assert sum(len(places) for texts in found.values() for places in texts.values()) > 100


@pytest.mark.parametrize("module", ["callbacks", "elastic"])
def test_both_keras_modules_describe_shared_names_alike(module):
    ours, theirs = f"horovod.keras.{module}", f"horovod.tensorflow.keras.{module}"
    for name in PACKAGE.exports(ours):
        pair = [PACKAGE.resolve(each, name) for each in (ours, theirs)]
        inits = [
            isinstance(each.node, ast.ClassDef) and docstrings.initializer(PACKAGE, each)
            for each in pair
        ]
        if all(inits) and len({ast.unparse(init.args) for init in inits}) == 1:
            assert len({ast.get_docstring(each.node) for each in pair}) == 1, name


# Importing a framework takes ten seconds of CPU time, and the machine may be busy.
@pytest.mark.timeout(240)
@pytest.mark.parametrize("group", GROUPS)
def test_help_shows_the_docstrings_and_examples_run(group):
    """Runs in a separate process: TensorFlow and torch's Triton cannot share one."""
    missing = [each for each in GROUPS[group] if find_spec(each) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, Path(__file__).with_name("shown.py"), group]
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (lambda given=SENTINEL: given, "given=<object object at"),
        (lambda given=tuple(range(99)): given, "given=(0, 1,"),
    ],
)
def test_an_unreadable_default_is_found(value, fault):
    assert fault in "\n".join(shown.default_faults(value))


def test_a_failing_example_is_found():
    assert shown.example_fault("assert 1 == 2") and not shown.example_fault("assert 1 == 1")
