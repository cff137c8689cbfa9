"""A packed trace is the trace: every packer, archives, UTF-16, folders; bombs and damage end in a sentence."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import part
from tests.trace.formats.rewritten import nsight_systems, xplane
from tracelens.errors import InputError
from tracelens.trace.reading.read import read_trace

TEXT = json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": f"k{i}", "pid": 0, "tid": 7, "ts": i, "dur": 0.5, "args": {"n": i}} for i in range(2000)]}).encode()  # fmt: skip


def zipped(data: bytes, **more: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run/rank0.json", data)
        archive.writestr("README.md", "notes")
        for name, text in more.items():
            archive.writestr(name.replace("_", "."), text)
    return target.getvalue()


def tarred(data: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, text in (("run/notes.txt", b"notes"), ("run/rank0.json", data)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return target.getvalue()


def zstd(data: bytes) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    sink = arrow.BufferOutputStream()
    with arrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd,
    "zip": zipped,
    "tar": tarred,
    "tar.gz": lambda data: gzip.compress(tarred(data)),
    "tar.bz2": lambda data: bz2.compress(tarred(data)),
    "zip of gz": lambda data: zipped(gzip.compress(data)),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16, big end first": lambda data: b"\xfe\xff" + data.decode().encode("utf-16-be"),
    "UTF-16 without a mark, in gzip": lambda data: gzip.compress(data.decode().encode("utf-16-le")),
}


@pytest.mark.parametrize("packer", PACKERS)
def test_what_is_packed_is_read_as_it_was(packer: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.any"
    path.write_bytes(PACKERS[packer](TEXT))
    table = read_trace(path)
    assert not table.losses
    assert len(table) == 2000
    assert table.event(1234)["args"] == {"n": 1234}
    assert table.source == "trace.any"


@pytest.mark.parametrize("packed", [bz2.compress, gzip.compress, zipped])
def test_other_formats_are_unpacked_too(packed: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(packed(nsight_systems(tmp_path / "a").read_bytes()))
    (tmp_path / "pb").write_bytes(packed(xplane(tmp_path / "b").read_bytes()))
    assert read_trace(tmp_path / "db").recorder.file == "a database of Nsight Systems"
    assert read_trace(tmp_path / "pb").recorder.file.startswith("an XPlane profile")


def test_an_archive_of_several_ranks_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ranks.zip"
    path.write_bytes(zipped(TEXT, rank1_json=TEXT))
    with pytest.raises(InputError, match=r"ranks\.zip is an archive of 2 traces \('rank1\.json', 'run/rank0\.json'\)"):
        read_trace(path)
    path.write_bytes(_without_traces())
    with pytest.raises(InputError, match=r"ranks\.zip is an archive without a trace: none of its 2 files"):
        read_trace(path)


def _without_traces() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a.txt", "a")
        archive.writestr("b.txt", "b")
    return target.getvalue()


def test_a_folder_with_one_trace_is_that_trace(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2026_01_01"
    run.mkdir(parents=True)
    (run / "host.xplane.pb").write_bytes(xplane(tmp_path / "x").read_bytes())
    (tmp_path / "x").unlink()
    assert read_trace(tmp_path).source == "host.xplane.pb"
    # What JAX shows of it in its own viewer
    (run / "host.trace.json.gz").write_bytes(gzip.compress(TEXT))
    assert read_trace(tmp_path).source == "host.xplane.pb"
    (run / "rank1.json").write_bytes(TEXT)
    with pytest.raises(InputError, match="is a folder, not a trace file"):
        read_trace(tmp_path)


def test_a_truncated_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    event = TEXT[TEXT.index(b"[") + 1 : TEXT.index(b"}}") + 2]
    packed = lzma.compress(b'{"traceEvents": [' + b", ".join([event] * 40_000) + b"]}", preset=0)
    path.write_bytes(packed[: len(packed) * 2 // 3])
    table = read_trace(path)
    assert table.losses.truncated
    assert "the xz data is damaged or ends early" in table.losses.notes[0]
    assert 5_000 < len(table) < 40_000


@pytest.mark.sweep
@pytest.mark.shared
def test_every_real_file_is_read_or_refused_with_a_remedy(shared_traces: Path) -> None:
    refused = {}
    for path in sorted(path for path in (shared_traces / "more").rglob("*.gz") if "more/torch" not in str(path)):
        if path.stat().st_size < 900_000 and not path.name.startswith("worker"):
            try:
                assert len(read_trace(path))
            except InputError as error:
                refused[path.name] = str(error)
    assert set(refused) == {
        "final.0.et.gz", "final.1.et.gz", "final.0.json.gz", "final.1.json.gz", "pytorch_et_0.json.gz",
        "pytorch_et_1.json.gz", "linear_et.json.gz", "pt2_et.json.gz",
    }  # fmt: skip
    assert all(
        "execution trace, which has shapes but no times: give" in text or "Perfetto" in text
        for text in refused.values()
    )


@pytest.mark.parametrize("packer", part([bz2.compress, lzma.compress, zipped], 3))
def test_a_bomb_stops_at_the_limit(packer: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(packer(bytes(40_000_000)))
    with pytest.raises(InputError, match=r"bomb unpacks to more than the 0\.02 GB of --max-memory"):
        read_trace(path, max_memory_gb=0.02)
    assert path.stat().st_size < 100_000


def test_a_matryoshka_ends(tmp_path: Path) -> None:
    data = TEXT
    for _ in range(8):
        data = bz2.compress(data)
    (tmp_path / "doll").write_bytes(data)
    with pytest.raises(InputError, match="doll is packed more than 4 times"):
        read_trace(tmp_path / "doll")


def test_without_a_library_zstd_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("tracelens.trace.reading.bytestream.importlib.import_module", missing)
    (tmp_path / "t.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    with pytest.raises(InputError, match=r"t\.zst is zstd data: pip install 'tracelens-perf\[zstd\]'"):
        read_trace(tmp_path / "t.zst")


@pytest.mark.parametrize(
    ("name", "start", "sentence"),
    [
        ("a.nsys-rep", b"anything", "nsys export --type sqlite a.nsys-rep"),
        ("a.et", b"\x07\n\x050.0.4\x10\x00", "Chakra execution trace, which has shapes but no times"),
        ("a.json", b'{"version": "0.0.4"}{"id": 1}', "Chakra execution trace"),
        (
            "a.json",
            b'{"schema": "1.1.0-chakra.0.0.4", "nodes": []}',
            "PyTorch execution trace, which has shapes but no",
        ),
        ("a.pickle", b"\x80\x04\x95", "a Python pickle, which can run code"),
    ],
)
def test_what_is_refused_says_what_to_do(name: str, start: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(start)
    with pytest.raises(InputError, match=sentence):
        read_trace(path)


def test_a_nameless_member_of_a_zip_is_read(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("n", TEXT)
    content = packed.getvalue()
    directory = content.index(b"PK\x01\x02")
    # The name's length, in front of its data and in the directory; the directory is now a byte earlier and shorter
    before = content[:26] + b"\0\0" + content[28:30] + content[31:directory]
    entry = content[directory : directory + 28] + b"\0\0" + content[directory + 30 : directory + 46]
    sizes = len(entry).to_bytes(4, "little") + len(before).to_bytes(4, "little")
    path = tmp_path / "t.json"
    path.write_bytes(before + entry + content[-22:-10] + sizes + b"\0\0")
    assert len(read_trace(path)) == 2000
