"""The documentation is correct: its site builds, its programs run, its command lines parse."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import launcher
from pages import PAGES, TOP, CommandLine, command_lines, programs, yaml

HERE = Path(__file__).parent
ALL = [program for page in PAGES for program in programs(page)]
COMMANDS = [command for page in PAGES for command in command_lines(page)]
# Pages of the reference, and the modules whose names they must contain.
MODULES = {
    "torch": ["torch", "torch.elastic"],
    "tensorflow": ["tensorflow", "tensorflow.elastic"],
    "tensorflow-keras": ["tensorflow.keras", "tensorflow.keras.callbacks"],
    "keras": ["keras", "keras.callbacks"],
    "jax": ["jax", "jax.elastic"],
    "mxnet": ["mxnet"],
    "lightning": ["lightning"],
    "raw": ["raw"],
    "data": ["data", "torch.data", "tensorflow.data.batches", "jax.data"],
    "spark": ["spark", "spark.task"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built like in `make docs`: every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    # Not with `--quiet`, because warnings that are not shown do not count as errors.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.timeout(600)
def test_the_site_loads_nothing_from_other_hosts(site):
    loads = re.compile(
        r"<(?:script|img|iframe|link(?! rel=\"?canonical))\b[^>]*(?:src|href)=\"?(https?:)?//"
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    assert not [str(page) for page in pages if loads.search(page.read_text())]


@pytest.mark.timeout(600)
def test_search_finds_functions_and_guides(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"guide/torch.html", "reference/api/torch.html", "troubleshooting.html"} <= places
    assert any(entry["location"].endswith("#horovod.torch.allreduce") for entry in index["docs"])


@pytest.mark.timeout(600)
def test_the_reference_has_every_public_function_and_class(site):
    import griffe

    package = griffe.load("horovod", search_paths=[TOP / "python"])
    missing = []
    for page, modules in MODULES.items():
        html = (site / "reference" / "api" / f"{page}.html").read_text()
        names = [f"{module}.{name}" for module in modules for name in public(package[module])]
        missing += [name for name in names if f'id="horovod.{name}"' not in html]
        assert names
    assert not missing


def public(module):
    """The public functions and classes of a module, found in the same way as for the site."""
    for name in map(str, module.exports):
        member = module[name]
        kind = (member.final_target if member.is_alias else member).kind.value
        if kind in ("function", "class"):
            yield name


def test_messages_of_the_troubleshooting_page_exist():
    source = "".join(
        path.read_text()
        for folder in ("crates", "python")
        for path in sorted((TOP / folder).rglob("*"))
        if path.suffix in (".rs", ".py")
    )
    # Join string literals that span several lines, in Rust and in Python.
    source = re.sub(r"\\\n\s*|\"\n\s*f?\"", "", source)
    headings = re.findall(r"^### (.*)$", (TOP / "docs/troubleshooting.md").read_text(), re.M)
    messages = [message for heading in headings for message in re.findall("`([^`]+)`", heading)]
    parts = [part.strip() for message in messages for part in re.split("…|: ", message)]
    assert len(parts) > 30
    assert not [part for part in parts if part not in source]


@pytest.mark.parametrize("program", [p for p in ALL if not p.runs], ids=lambda p: p.place)
def test_programs_that_cannot_run_here_compile(program):
    compile(program.code, str(program.page), "exec")


# About 15 seconds each on an idle machine with two cores, mostly for imports.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
def test_programs_run_on_two_ranks(framework, tmp_path):
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    run = [launcher(), "-np", "2", sys.executable, str(HERE / "snippets.py"), framework]
    assert_runs(run, tmp_path)


@pytest.mark.timeout(600)
def test_programs_that_start_ranks_run(tmp_path):
    assert_runs([sys.executable, str(HERE / "snippets.py"), "alone"], tmp_path)


def assert_runs(command, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    ran = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    assert "running " in ran.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the command lines name."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "job.yaml").write_text(yaml(Path("docs/guide/horovodrun.md")))
    return folder


def test_command_lines_parse(folder):
    wrong = [problem for command in COMMANDS if (problem := problem_of(command, folder))]
    assert not wrong, "\n".join(wrong)
    assert {command.words[0] for command in COMMANDS} == {"horovodrun", "ronde", "make"}


def problem_of(command: CommandLine, folder: Path) -> str | None:
    """What is wrong with a command line, without running it."""
    name, *words = command.words
    if name == "make":
        known = re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.M)
        targets = [word for word in words if "=" not in word and word != "…"]
        unknown = [target for target in targets if target not in known]
        return f"{command.place}: no target {unknown}" if unknown else None
    if not command.whole:
        return unknown_options(name, command)
    # Neither starts a job: the first is what `horovod.runner.launch.parse_args` calls, and help is
    # only shown if everything before it could be parsed.
    line = ["__ronde-parse", *words] if name == "horovodrun" else [*words, "--help"]
    parsed = subprocess.run([tool(name), *line], cwd=folder, capture_output=True, text=True)
    return None if parsed.returncode == 0 else f"{command.place}\n{parsed.stderr}"


def unknown_options(name: str, command: CommandLine) -> str | None:
    """Reports options that do not exist in a partial command line."""
    _, *words = command.words
    if name == "horovodrun":
        known = shown(name, "__ronde-options")
    else:
        known = shown(name, words[0], "--help") if words[0][0] != "-" else shown(name, "--help")
    ours = itertools.takewhile(lambda word: word not in ("python", "hostname"), words)
    given = [word.partition("=")[0] for word in ours if word.startswith("--")]
    unknown = [option for option in given if not re.search(rf"{option}(?![\w-])", known)]
    return f"{command.place}: no option {unknown}" if unknown else None


@functools.cache
def shown(name: str, *words: str) -> str:
    return subprocess.run(
        [tool(name), *words], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def tool(name: str) -> str:
    return str(Path(launcher()).with_name(name))
