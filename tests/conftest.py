"""Fixtures every room's tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Real traces, which are not part of the repository."""
    path = REPOSITORY.parent / "shared" / "data" / "traces"
    if not path.is_dir():
        pytest.skip("../shared/data/traces is not there: real traces are not part of the repository")
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Measured tables, which are not part of the repository either."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("../shared/data is not there: measured tables are not part of the repository")
    return path


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY
