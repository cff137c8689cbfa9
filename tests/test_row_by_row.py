"""A test over the rows of a table fails as its rows do, and says which."""

from __future__ import annotations

import inspect

import pytest

from tests.conftest import row_by_row


def test_every_row_is_tried_and_each_that_fails_is_named() -> None:
    tried = []

    @row_by_row(("a", "b"), [(1, 1), (1, 2), (3, 3), (4, 5)])
    def equal(a: int, b: int) -> None:
        tried.append(a)
        assert a == b

    with pytest.raises(BaseExceptionGroup) as failed:
        equal()
    assert tried == [1, 1, 3, 4]
    assert [each.__notes__ for each in failed.value.exceptions] == [["row (1, 2)"], ["row (4, 5)"]]


def test_what_pytest_itself_fails_counts_and_one_failure_is_raised_as_it_is() -> None:
    @row_by_row("text", ["", "1"])
    def no_number(text: str) -> None:
        with pytest.raises(ValueError, match="invalid"):
            int(text)

    with pytest.raises(pytest.fail.Exception) as failed:
        no_number()
    assert failed.value.__notes__ == ["row '1'"]


def test_rows_that_are_all_skipped_are_a_skip_and_fixtures_stay_arguments() -> None:
    @row_by_row("number", [1, 2])
    def later(tmp_path: str, number: int) -> None:
        if number < 3:
            pytest.skip("not yet")

    assert list(inspect.signature(later).parameters) == ["tmp_path"]
    with pytest.raises(pytest.skip.Exception):
        later(tmp_path="")
