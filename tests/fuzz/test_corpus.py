"""What fuzzing by coverage found worth keeping runs again: a part each time, all with ``-m sweep``."""

from __future__ import annotations

import pytest

from tests.conftest import part
from tests.fuzz.by_coverage import CORPUS, FAILED, LONGEST_BYTES, Target, parts_of

INPUTS = sorted(path.name for path in CORPUS.iterdir())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("name", part(INPUTS, 24, [name for name in INPUTS if name.startswith(FAILED)]))
def test_every_kept_input_ends_well(name: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(target.work)
    target.run((CORPUS / name).read_bytes())


def test_the_corpus_is_small_and_has_inputs_of_every_format(target: Target) -> None:
    contents = [path.read_bytes() for path in CORPUS.iterdir()]
    assert sum(map(len, contents)) < 300_000
    assert {parts_of(each)[0] for each in target.seeds} <= {parts_of(each)[0] for each in contents}


def test_changed_inputs_are_of_the_same_format(target: Target) -> None:
    seeds = target.seeds
    changed = [target.changed(content, LONGEST_BYTES, 1, lambda data, _: data[::-1]) for content in seeds]
    assert [parts_of(each)[:2] for each in changed] == [parts_of(each)[:2] for each in seeds]
    assert sum(one != other for one, other in zip(changed, seeds, strict=True)) > len(seeds) / 2
