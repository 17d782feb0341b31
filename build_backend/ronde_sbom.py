"""Creates the software bill of materials of a wheel: every crate that is compiled into it.

It is one CycloneDX document for the module, the commands and the library together, made only from
Cargo's metadata: it has no time, no random number and no path, so the same sources give the same
document on every machine. (maturin's own document covers only the module and contains the path
of the build folder.)
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

SHIPPED = ("ronde-py", "ronde-cli", "ronde-tensorflow")
LOCKED = re.compile(r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"')


def sbom(root: Path, target: str | None) -> str:
    """The document for a wheel of the sources in `root`, built for a target triple or this host."""
    if target is None:
        described = subprocess.check_output(["rustc", "-vV"], text=True)
        target = dict(re.findall("(.+): (.+)", described))["host"]
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", target]
    metadata = json.loads(subprocess.check_output(command, cwd=root))
    found = re.findall(LOCKED, (root / "Cargo.lock").read_text())
    checksums = {(name, version): checksum for name, version, checksum in found}

    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {
        node["id"]: [
            dependency["pkg"]
            for dependency in node["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
        for node in metadata["resolve"]["nodes"]
    }
    roots = [key for key, package in packages.items() if package["name"] in SHIPPED]
    inside: dict[str, dict[str, Any]] = {}
    waiting = list(roots)
    while waiting:
        key = waiting.pop()
        if key not in inside:
            inside[key] = packages[key]
            waiting += needs[key]

    refs = {key: f"pkg:cargo/{crate['name']}@{crate['version']}" for key, crate in inside.items()}
    version = packages[roots[0]]["version"]
    wheel = f"pkg:pypi/ronde@{version}"
    depends = {wheel: roots, **{ref: needs[key] for key, ref in refs.items()}}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": wheel,
                "name": "ronde",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": wheel,
            },
            "properties": [{"name": "target", "value": target}],
        },
        "components": sorted(
            (component(refs[key], crate, checksums) for key, crate in inside.items()),
            key=lambda one: one["bom-ref"],
        ),
        "dependencies": [
            {"ref": ref, "dependsOn": sorted({refs[key] for key in keys})}
            for ref, keys in sorted(depends.items())
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def component(
    ref: str, crate: dict[str, Any], checksums: dict[tuple[str, str], str]
) -> dict[str, Any]:
    """The entry for one crate; crates of this workspace have no checksum."""
    checksum = checksums.get((crate["name"], crate["version"]))
    # Old crates separate their licenses with a slash.
    expression = crate["license"].replace("/", " OR ")
    return {
        "type": "library",
        "bom-ref": ref,
        "name": crate["name"],
        "version": crate["version"],
        "licenses": [{"expression": expression}],
        "purl": ref,
        **({"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {}),
    }
