"""A table's cells are numbers in range or a sentence with row and column; nothing else comes out of a hostile file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError, UsageError
from tracelens.files import documents
from tracelens.files.data_table import (
    COUNT,
    SIZE,
    Number,
    faults,
    is_blank,
    numbers,
    read_rows,
    read_table,
    text_codes,
    texts,
)
from tracelens.files.documents import arrays_of, json_of, settings_of, toml_of, yaml_of
from tracelens.predict.estimation.communication import estimate_collectives
from tracelens.predict.estimation.estimate import estimate
from tracelens.predict.serving.requests import read_requests
from tracelens.predict.workload.token_routing import read_routing

CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12),
    st.sampled_from(["", " ", "nan", "inf", "-inf", "1.5", "1e999", "1e-320", "0x10", "1_000", "٣", "x" * 5000, 10**30]),
)  # fmt: skip
KINDS = st.builds(
    Number,
    least=st.sampled_from([-5.0, 0.0, 1.0]),
    most=st.sampled_from([10.0, 1e15]),
    whole=st.booleans(),
    blank=st.sampled_from([None, 3.0]),
)


@given(st.lists(CELLS, max_size=5), KINDS)
def test_a_cell_is_a_number_in_range_or_has_a_sentence_with_its_row_and_column(
    cells: list[object], kind: Number
) -> None:
    table = pd.DataFrame({"m": pd.Series(cells, dtype=object)})
    found, said = numbers(table, "m", kind), faults(table, {"m": kind}, "in.csv")
    for row, (cell, value, sentence) in enumerate(zip(cells, found.tolist(), said, strict=True)):
        if sentence:
            assert np.isnan(value)
            assert sentence.startswith(f"in.csv, row {row + 2}, column 'm' ")
            assert len(sentence) < 250
        else:
            assert kind.least <= value <= kind.most or (is_blank(cell) and value == kind.blank)
            assert not kind.whole or value == int(value) or is_blank(cell)


@pytest.mark.parametrize(
    "cell", ["", None, float("nan"), "12", 12, 12.0, "1.2e1", True, "twelve", 0, 1e300, float("inf")]
)
def test_one_cell_and_a_column_agree(cell: object) -> None:
    table = pd.DataFrame({"m": pd.Series([cell], dtype=object)})
    try:
        alone = COUNT.of(cell, "here")
    except InputError:
        alone = None
    (value,) = numbers(table, "m", COUNT).tolist()
    assert alone == value if alone is not None else np.isnan(value)


def test_an_empty_name_is_its_default_and_a_long_one_is_cut() -> None:
    table = pd.DataFrame({"device": ["", None, "x" * 5000, 7]})
    assert [len(text) for text in texts(table, "device", "bf16")] == [4, 4, 203, 1]


def test_every_row_of_a_hostile_batch_has_a_time_or_a_reason() -> None:
    cells = [
        128,
        "",
        None,
        "abc",
        1.5,
        0,
        -1,
        1e18,
        1e-320,
        float("inf"),
        float("nan"),
        True,
        "1e400",
        "x" * 5000,
        10**30,
    ]
    for column in ("m", "gemm_dtype", "device"):
        table = pd.DataFrame(
            {"m": 128, "n": 128, "k": 128, "gemm_dtype": "bf16", "device": "h100-sxm"}, index=range(15)
        )
        found = estimate("gemm", table.assign(**{column: pd.Series(cells, dtype=object)}), device="h200")
        assert ((found["reason"] == "") == found["time_us"].notna()).all()
        assert found["m"].tolist() == found["m"].tolist() or column == "m"
    message = pd.DataFrame({"op": "all_reduce", "size": 1 << 20, "num_nodes": 2, "gpus_per_node": 4}, index=range(15))
    for column in message:
        found = estimate_collectives(message.assign(**{column: pd.Series(cells, dtype=object)}), cluster="perlmutter")
        assert ((found["reason"] == "") == found["time_us"].notna()).all(), column


def test_a_row_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("x = 1")
    table = pd.DataFrame({"m": [8], "n": [8], "k": [8], "device": [str(tmp_path / "mine.toml")]})
    assert estimate("gemm", table)["reason"].tolist() == [f"no device named '{tmp_path}/mine.toml'"]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("read", "name", "content"),
    [
        (read_table, "t.csv", b""), (read_table, "t.csv", b"\xff\xfe\x00a,b\n"),
        (read_table, "t.csv", b'a,b\n"1'), (read_table, "t.csv", b"a,b\n1,2,3\n1,2,3,4\n"),
        (read_rows, "t.csv", b"\xff,b\n1,2\n"), (read_rows, "t.csv", b"a,a\n1,2\n"),
        (json_of, "t.json", DEEP.encode()), (json_of, "t.json", b"\xff"), (json_of, "t.json", b"9" * 5000),
        (toml_of, "t.toml", f"a = {DEEP[:3000]}".encode()), (toml_of, "t.toml", b"\xff = 1"),
        (yaml_of, "t.yaml", b"a: &x [1]\nb: [*x, *x]"), (yaml_of, "t.yaml", DEEP.encode()[:3000]), (yaml_of, "t.yaml", b"a: !!python/object/apply:os.system [id]"),
        (settings_of, "t.yaml", b"a: 1\n? \n: [2]\n"), (settings_of, "t.yaml", b"a: [{b: {1: 2}}]"), (settings_of, "t.yaml", b"? !!binary " + b"YWFh" * 999 + b"\n: 1"),
        (settings_of, "t.json", b"[1]"),
        (arrays_of, "t.npz", b"PK\x03\x04 no"), (arrays_of, "t.npz", b""),
        (read_requests, "t.jsonl", b'{"timestamp": 1, "input_length": 1e400, "output_length": 2}'),
        (read_requests, "t.jsonl", b'{"timestamp": [], "input_length": 1, "output_length": 2}'), (read_requests, "t.jsonl", b"[1]"),
        (read_requests, "t.csv", b"TIMESTAMP,ContextTokens\n1,2\n"), (read_requests, "t.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n1,inf,3\n"),
        (read_requests, "t.csv", b"arrival_s,input_toks,output_toks\n0,1.5x,2\n"), (read_requests, "t.json", b'{"input_lens": [1], "output_lens": [2], "ttfts": [NaN]}'),
        (read_requests, "t.json", b'{"input_lens": [1], "output_lens": []}'), (read_requests, "t.json", b"[[1]]"), (read_requests, "t.json", b"[" * 5000),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_one_sentence_that_names_it(read, name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    arguments = () if read in (read_table, read_rows, read_requests, arrays_of) else ("a document",)
    with pytest.raises(InputError) as error:
        read(path, *arguments)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 400


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"experts": np.array([["a"]])}, "experts must hold numbers"),
        ({"experts": np.array(3)}, "is a single number"),
        ({"experts": np.zeros((1, 2), dtype=[("a", "i4")])}, "must hold numbers"),
        ({"experts": np.array([[1e15, 1]])}, "experts, row 1, column 1 must be a whole number from -1 to 999,999"),
        ({"experts": np.array([[1, 0.5]])}, "row 1, column 2"),
        ({"experts": np.array([[1, 2]]), "num_experts": np.array(1)}, "num_experts must be one number from 3"),
        ({"logits": np.array([[1.0, np.nan]])}, "logits[0, 1] is not a finite number"),
        ({"counts": np.array([1, -1])}, "counts, row 1, column 2"),
        ({"counts": np.zeros((0, 2))}, "empty"),
        ({"other": np.array([1])}, "contains other"),
    ],
)
def test_a_routing_file_of_wrong_arrays_is_one_sentence(
    arrays: dict[str, np.ndarray], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.npz"
    np.savez(path, **arrays)
    with pytest.raises((InputError, UsageError), match=said.replace("[", r"\[")):
        read_routing(path, topk=2)


def test_an_array_that_unpacks_to_much_more_than_its_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, experts=np.zeros((1000, 1000)))
    monkeypatch.setattr(documents, "MOST_ARRAY_BYTES", 10**6)
    with pytest.raises(InputError, match=r"experts.npy unpacks to 0\.0 GB"):
        arrays_of(path)


def test_pickled_arrays_are_not_executed(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", experts=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError):
        arrays_of(tmp_path / "p.npz")


def test_a_row_without_a_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("1,2\n3,x\n")
    with pytest.raises(InputError, match="its row 2, column 2 must be a number"):
        read_routing(path, topk=2)


def test_size_is_a_count_that_may_be_none() -> None:
    assert (SIZE.count("0", "here"), COUNT.count(" 3 ", "here")) == (0, 3)
    assert json.dumps(str(COUNT)) == '"a whole number from 1 to 1e15"'


def test_places_of_texts_tell_apart_what_python_counts_as_equal():
    mixed = pd.DataFrame({"a": [1, True, "1", 1.0, None, " x ", "x", float("nan"), ""]}, dtype=object)
    assert texts(mixed, "a", "-") == ["1", "True", "1", "1.0", "-", "x", "x", "-", "-"]
    plain = pd.DataFrame({"a": ["b", None, "a ", "b", ""]})
    codes, words = text_codes(plain, "a", "-")
    assert [words[code] for code in codes] == texts(plain, "a", "-") == ["b", "-", "a", "b", "-"]
    assert texts(plain.iloc[:0], "a") == []
