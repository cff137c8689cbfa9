"""The versions that CI installs are ones that pyproject.toml allows, each with its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PIN = re.compile(r"^([a-z0-9.-]+)==(\S+)(.*?)((?: --hash=sha256:[0-9a-f]{64})+)$")


def pins(repository: Path) -> dict[str, list[str]]:
    """The versions of each package: several where Pythons differ."""
    text = (repository / ".ci" / "lock.txt").read_text().replace(" \\\n   ", "")
    found: dict[str, list[str]] = {}
    for line in filter(None, text.splitlines()):
        if not line.startswith("#"):
            pinned = PIN.match(line)
            assert pinned, line
            found.setdefault(pinned[1], []).append(pinned[2])
    return found


def required(repository: Path) -> list[Requirement]:
    """What ``tracelens-perf[dev,docs]`` needs, its own extras followed."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    found, waiting = [Requirement(text) for text in project["dependencies"]], ["dev", "docs"]
    while waiting:
        for need in map(Requirement, project["optional-dependencies"][waiting.pop()]):
            if need.name == project["name"]:
                waiting += need.extras
            else:
                found.append(need)
    return found


def test_every_requirement_is_pinned_to_a_version_that_it_allows(repository: Path) -> None:
    known = pins(repository)
    for need in required(repository):
        versions = known.get(canonicalize_name(need.name), [])
        assert versions, f"{need.name} is not locked: bash .ci/lock"
        assert all(need.specifier.contains(version) for version in versions), f"{need}: {versions}: bash .ci/lock"
