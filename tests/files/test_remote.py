"""A URL in place of a file: the same answer as for the file, outputs here, and one sentence where nothing is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

fsspec = pytest.importorskip("fsspec")

from tracelens import load  # noqa: E402
from tracelens.cli import main  # noqa: E402
from tracelens.errors import InputError  # noqa: E402
from tracelens.files.remote import fetched, folder_beside  # noqa: E402

TRACE = Path("example_traces/moe_ep8/rank0.json.gz").resolve()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    store = fsspec.filesystem("memory")
    store.pipe("/runs/job/rank0.json.gz", TRACE.read_bytes())
    monkeypatch.chdir(tmp_path)
    yield store
    store.rm("/runs", recursive=True)


def test_what_a_url_names_is_reported_as_the_file_is(
    store: fsspec.AbstractFileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(TRACE), "-o", "here.json"]) == 0
    assert main(["report", "memory://runs/job/rank0.json.gz", "-o", "there.json"]) == 0
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()


def test_outputs_that_lie_beside_their_trace_lie_in_the_current_folder_and_what_was_fetched_goes(
    store: fsspec.AbstractFileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "memory://runs/job/rank0.json.gz", "--top", "1"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.ops"]
    with fetched(["check", "memory://runs/job/rank0.json.gz"]) as (_, local):
        assert Path(local).read_bytes() == TRACE.read_bytes()
        assert folder_beside(Path(local)) == Path()
    assert not Path(local).exists()
    assert folder_beside(TRACE) == TRACE.parent


def test_an_address_that_ends_with_a_slash_is_a_folder(store: fsspec.AbstractFileSystem) -> None:
    store.pipe("/runs/job/deep/rank1.json", b"{}")
    with fetched(["collectives", "memory://runs/job/"]) as (_, folder):
        found = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()}
    assert found == {"rank0.json.gz", "deep/rank1.json"}


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["report", "memory://runs/none.json"], 1, "memory://runs/none.json: nothing was found there"),
        (["report", "memory://runs/nothing/"], 1, "memory://runs/nothing/: nothing was found there"),
        (["report", str(TRACE), "-o", "s3://bucket/report"], 2, "outputs are written to this machine's files only"),
        (["check", "https://me:secret@127.0.0.1:9/a.json?Signature=secret"], 1, "https://127.0.0.1:9/a.json"),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence_without_secrets(
    store: fsspec.AbstractFileSystem, arguments: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert "secret" not in said
    assert said.count("\n") == 1


def test_names_that_lead_out_of_their_folder_are_refused(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(type(store), "find", lambda *_: ["/runs/job/../../evil.json"])
        with (
            pytest.raises(InputError, match="not a path inside that folder"),
            fetched(["collectives", "memory://runs/job/"]),
        ):
            raise AssertionError("fetched")


def test_a_signature_is_not_repeated_in_a_stores_refusal(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("403, url=https://h/a.json?Signature=secret")

    monkeypatch.setattr("tracelens.files.remote._store", refuse)
    with pytest.raises(InputError) as found, fetched(["check", "https://h/a.json?Signature=secret"]):
        raise AssertionError("fetched")
    assert "403" in str(found.value)
    assert "secret" not in str(found.value)


def test_other_addresses_are_left_as_they_are() -> None:
    given = ["collectives", "ranks", "--executor", "dask://node7:8786", "-o", "out"]
    with fetched(given) as local:
        assert local == given


def test_python_says_how_to_fetch() -> None:
    with pytest.raises(InputError, match=r"open_local\('simplecache::URL'\)"):
        load("s3://bucket/rank0.json.gz")
