"""`.ci/advisories`, which `make deny` runs, with advisory databases made by the tests."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DENY = shutil.which("cargo-deny") or str(ROOT / ".tools" / "bin" / "cargo-deny")
pytestmark = pytest.mark.skipif(
    not Path(DENY).exists(), reason="cargo-deny is not installed; `make deny` installs it"
)

ADVISORY = """```toml
[advisory]
id = "RUSTSEC-2026-0001"
package = "{crate}"
date = "2026-01-01"

[versions]
patched = []
```

# Example vulnerability

Found by a test.
"""


# No server listens there.
URL = "https://localhost:1/advisories"


def check(folder, place, url=URL):
    """Runs the check; git finds the database in the folder `place`."""
    config = folder / "deny.toml"
    section = f'[advisories]\ndb-urls = ["{url}"]\ndb-path = "{folder}/databases"'
    text = (ROOT / "deny.toml").read_text()
    assert "[advisories]" in text
    config.write_text(text.replace("[advisories]", section))
    return subprocess.run(
        [ROOT / ".ci" / "advisories", DENY, config],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "CARGO_TERM_COLOR": "never",
            # cargo-deny requires a domain in the URL, so git redirects it to the folder.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.file://{place}.insteadOf",
            "GIT_CONFIG_VALUE_0": url if place else "nothing",
        },
    )


def database(folder, crate):
    """Creates a database with one advisory, for this crate."""
    place = folder / "database"
    path = place / "crates" / crate / "RUSTSEC-2026-0001.md"
    path.parent.mkdir(parents=True)
    path.write_text(ADVISORY.format(crate=crate))
    git = ["git", "-C", place, "-c", "user.name=Test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "init", "-q", "-b", "main", place], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "Advisories"], check=True)
    return place


def test_an_advisory_about_a_dependency_fails_the_check(tmp_path):
    crates = re.findall(r'^name = "(snow|tokio)"$', (ROOT / "Cargo.lock").read_text(), re.M)
    result = check(tmp_path, database(tmp_path, crates[0]))
    assert result.returncode != 0, result
    assert "RUSTSEC-2026-0001" in result.stderr + result.stdout


def test_without_a_matching_advisory_the_check_passes(tmp_path):
    result = check(tmp_path, database(tmp_path, "a-crate-that-nobody-uses"))
    assert result.returncode == 0, result
    assert "no advisories were checked" not in result.stderr


def test_an_unreachable_database_is_noted_but_does_not_fail_the_check(tmp_path):
    result = check(tmp_path, None)
    assert result.returncode == 0, result
    assert "note: no advisories were checked" in result.stderr


def test_any_other_problem_fails_the_check(tmp_path):
    result = check(tmp_path, None, '"] and this is no TOML')
    assert result.returncode != 0, result
