"""The versions that CI installs are ones that pyproject.toml allows, each with its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PIN = re.compile(r"^([a-z0-9.-]+)==(\S+)(.*?)((?: --hash=sha256:[0-9a-f]{64})+)$")


def pins(repository: Path, file: str) -> dict[str, list[str]]:
    """The versions of each package: several where Pythons differ."""
    text = (repository / ".ci" / file).read_text().replace(" \\\n   ", "")
    found: dict[str, list[str]] = {}
    for line in filter(None, text.splitlines()):
        if not line.startswith("#"):
            pinned = PIN.match(line)
            assert pinned, line
            found.setdefault(pinned[1], []).append(pinned[2])
    return found


def required(repository: Path, *extras: str) -> list[Requirement]:
    """What ``tracelens-perf`` needs with its ``extras``, those that they name followed."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    found, waiting = [Requirement(text) for text in project["dependencies"]], [*extras]
    while waiting:
        for need in map(Requirement, project["optional-dependencies"][waiting.pop()]):
            if need.name == project["name"]:
                waiting += need.extras
            else:
                found.append(need)
    return found


@pytest.mark.parametrize(("file", "extras"), [("lock.txt", ("dev", "docs")), ("integrations.txt", ("integrations",))])
def test_every_requirement_is_pinned_to_a_version_that_it_allows(
    file: str, extras: tuple[str, ...], repository: Path
) -> None:
    known = pins(repository, file)
    for need in required(repository, *extras):
        versions = known.get(canonicalize_name(need.name), [])
        assert versions, f"{need.name} is not locked: bash .ci/lock"
        assert all(need.specifier.contains(version) for version in versions), f"{need}: {versions}: bash .ci/lock"
