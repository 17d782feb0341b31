"""The code in the documentation: the Python programs and the command lines of its pages.

The Python snippets of a page, from top to bottom, form one program that runs on two ranks. HTML
comments, which readers do not see, mark exceptions:

       <!-- python: new -->                the next snippet starts a new program
       <!-- python: alone -->              the same, but it runs in one process without a launcher
       <!-- python: setup                  these lines also run at this point
    model = torch.nn.Linear(3, 1)
    -->
    <!-- python: not run: REASON -->    the next snippet is only compiled
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(TOP)
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "bench/**/README.md")
    for path in TOP.glob(pattern)
)
PART = re.compile(
    r"^<!-- python: (?P<note>.*?)-->"
    r"|^(?P<indent> *)(?P<ticks>```+)(?P<language>\S*)[^\n]*\n"
    r"(?P<code>.*?)^(?P=indent)(?P=ticks) *$",
    re.DOTALL | re.MULTILINE,
)
INLINE = re.compile(r"(?<!`)`((?:horovodrun|ronde|make) [^`\n]+)`(?!`)")
COMMAND = re.compile(r"(?:\$ )?(?:[A-Z_]+=\S* )*(?:\.venv/bin/)?(horovodrun|ronde|make)( .+)$")


@dataclass
class Program:
    """Snippets of a page that run one after another, each at its line number in the page."""

    page: Path
    first_line: int
    alone: bool
    code: str = ""
    runs: bool = True

    def add(self, code: str, line: int) -> None:
        """Appends a snippet, padded so that a traceback shows its line in the page."""
        self.code += "\n" * (line - 1 - self.code.count("\n")) + code

    @property
    def place(self) -> str:
        """Its page and line, for messages."""
        return f"{self.page}:{self.first_line}"

    @property
    def framework(self) -> str:
        """The framework that takes the longest to import."""
        if "horovod.jax" in self.code:
            return "jax"
        keras = ("horovod.tensorflow", "horovod.keras", "import tensorflow")
        return "tensorflow" if any(name in self.code for name in keras) else "torch"


@dataclass
class CommandLine:
    """One command, without its surrounding text."""

    page: Path
    line: int
    words: list[str]
    whole: bool
    """Whether it is a complete command in a block; sentences often show only a part."""

    @property
    def place(self) -> str:
        """Its page, line and text, for messages."""
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def programs(page: Path) -> list[Program]:
    """The Python programs of a page."""
    text = (TOP / page).read_text()
    found: list[Program] = []
    begins, alone, runs = True, False, True
    for part in PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 2
        note = (part["note"] or "").strip()
        if note.startswith("not run: "):
            runs = False
        elif note in ("new", "alone"):
            begins, alone = True, note == "alone"
        elif part["note"] and not note.startswith("setup\n"):
            raise ValueError(f"{page}:{line - 1}: `{note}` is not a known annotation for snippets")
        elif part["note"] or part["language"] == "python":
            code = note.removeprefix("setup\n") if part["note"] else part["code"]
            code = textwrap.dedent(code).rstrip() + "\n"
            if not runs:
                lone = Program(page, line, alone=False, runs=False)
                lone.add(code, line)
                found.append(lone)
                runs = True
                continue
            if begins or not any(program.runs for program in found):
                found.append(Program(page, line, alone))
                begins = False
            next(program for program in reversed(found) if program.runs).add(code, line)
    return found


def yaml(page: Path) -> str:
    """The first YAML block of a page."""
    text = (TOP / page).read_text()
    return next(part["code"] for part in PART.finditer(text) if part["language"] == "yaml")


def command_lines(page: Path) -> list[CommandLine]:
    """The command lines of a page that run `horovodrun`, `ronde` or `make`."""
    text = (TOP / page).read_text()
    found: list[CommandLine] = []
    prose = text
    for part in PART.finditer(text):
        prose = prose.replace(part[0], "\n" * part[0].count("\n"), 1)
        if part["code"] is None or part["language"] not in ("", "sh", "bash", "console"):
            continue
        first = text.count("\n", 0, part.start()) + 2
        code = part["code"].replace("\\\n", "  ")
        for offset, line in enumerate(code.split("\n")):
            match = COMMAND.match(line.strip())
            words = _words(match) if match else []
            if len(words) > 1:
                found.append(CommandLine(page, first + offset, words, whole=True))
    for match in INLINE.finditer(prose):
        line = prose.count("\n", 0, match.start()) + 1
        words = _words(COMMAND.match(match[1]))
        found.append(CommandLine(page, line, words, whole=False))
    return found


def _words(match: re.Match[str]) -> list[str]:
    lexer = shlex.shlex(match[2], posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    words = [match[1]]
    for word in lexer:
        if set(word) <= set("|;&<>()"):
            break
        words.append(word)
    return words
