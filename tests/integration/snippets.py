"""Runs the programs of the documentation, or of some pages, on each rank: `snippets.py torch`.

Frameworks take seconds to import, so each is imported once, and every program runs in a fork of
that process, with its own world, process group and environment. The first program that fails ends
the job; its traceback shows the line in its page.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from pages import PAGES, Program, programs

IMPORTS = {
    # Torch's optimizers import its compiler on first use.
    "torch": ["torch", "torch._dynamo", "accelerate", "lightning.pytorch"],
    "tensorflow": ["tensorflow", "keras"],
    "jax": ["jax", "optax"],
}


def main() -> None:
    """Runs all programs of a framework on this rank, or with `alone` those without a launcher."""
    wanted, *some = sys.argv[1:]
    for name in IMPORTS.get(wanted, []):
        importlib.import_module(name)
    pages = [Path(page) for page in some] or PAGES
    for program in (program for page in pages for program in programs(page)):
        if program.runs and wanted == ("alone" if program.alone else program.framework):
            print(f"running {program.place}", flush=True)
            child = os.fork()
            if child == 0:
                run(program)
                return
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code != 0:
                sys.exit(f"{program.place} ended with code {code}")


def run(program: Program) -> None:
    """Runs one program; the interpreter exits normally afterwards."""
    code = compile(program.code, str(program.page), "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    main()
