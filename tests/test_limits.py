"""Limits of memory, of what is fetched and of what a file may say end in one sentence, which holds no secret."""

from __future__ import annotations

import argparse
import copy
import errno
import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import part
from tracelens.cli import main
from tracelens.files import remote
from tracelens.files.memory_limit import limited, raise_at_limit
from tracelens.files.safe_text import without_secrets

TRACE = Path("example_traces/moe_ep8/rank0.json.gz").resolve()
COMMAND = [sys.executable, "-c", "import sys; from tracelens.cli import main; sys.exit(main())"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts a process's data")
@pytest.mark.parametrize("most_gb", part(["0.1", "0.11", "0.12", "0.14"], 4))
@pytest.mark.parametrize("words", ["report {} -o OUT", "query {} --ready steps", "serve --model llama3-8b --cluster h100-sxm --rate 1 --requests 3"])  # fmt: skip
def test_too_little_memory_is_a_sentence_wherever_it_ends(most_gb: str, words: str, tmp_path: Path) -> None:
    """Also in the middle of an import, and when the process ends with a library that was loaded in part."""
    words = words.format(TRACE).replace("OUT", str(tmp_path / "out"))
    done = subprocess.run(
        [*COMMAND, *words.split(), "--max-memory", most_gb], capture_output=True, text=True, timeout=300
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode in (0, 1), (done.returncode, done.stderr)
    assert len(said) == done.returncode
    assert all("it needs more than" in line or "does not fit" in line for line in said), said
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or list(tmp_path.iterdir()) == []


class _Ends:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def test_a_refusal_that_python_drops_is_not_shown_and_any_other_error_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with limited(None):
        _Ends(MemoryError())
        assert capsys.readouterr().err == ""
        _Ends(KeyError("lost"))
    assert "KeyError: 'lost'" in capsys.readouterr().err
    _Ends(MemoryError())
    assert "MemoryError" in capsys.readouterr().err


def test_a_limit_below_what_the_libraries_take_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        raise SystemExit(main(["ops", "--max-memory", "0.03"]))
    assert "argument --max-memory: must be at least 0.1" in capsys.readouterr().err


def caused(cause: BaseException) -> ImportError:
    error = ImportError("C extension: None not built")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), RuntimeError("can't start new thread"), OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("x.so: cannot map zero-fill pages"), ImportError("x.so: failed to map segment from shared object"),
        caused(MemoryError()), caused(ImportError("y.so: cannot allocate memory in static TLS block")),
    ],
)  # fmt: skip
def test_a_refusal_of_memory_is_known_in_each_of_its_shapes(error, monkeypatch, capsys) -> None:
    monkeypatch.setattr("tracelens.cli.known.run_ops", raising(error))
    assert main(["ops"]) == 1
    assert "not enough memory: it needs more than" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts a process's data")
@pytest.mark.parametrize("error", [SystemError("error return without exception set"), AttributeError("partially initialized module")])  # fmt: skip
def test_an_error_of_a_library_at_the_limit_is_its_effect_and_else_a_bug(error, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tracelens.cli.known.run_ops", raising(error))
    assert main(["ops"]) == 70
    monkeypatch.setattr("tracelens.files.memory_limit.resident_bytes", lambda: 95_000_000)
    assert main(["ops", "--max-memory", "0.1"]) == 1
    assert "it needs more than the 0.1 GB of --max-memory" in capsys.readouterr().err


def test_the_end_of_memory_costs_the_command_and_not_the_extension_that_met_it(monkeypatch) -> None:
    error = MemoryError()
    raise_at_limit(error)  # of code that asked for too much, in a process that has enough
    with limited(0.1):
        monkeypatch.setattr("tracelens.files.memory_limit.resident_bytes", lambda: 50_000_000)
        raise_at_limit(error)
        monkeypatch.setattr("tracelens.files.memory_limit.resident_bytes", lambda: 95_000_000)
        raise_at_limit(ValueError("its own"))
        with pytest.raises(MemoryError):
            raise_at_limit(error)


def raising(error: BaseException) -> Callable[..., int]:
    def run(args: object) -> int:
        raise error

    return run


def test_the_file_about_a_bug_holds_no_secret(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    secret = f"https://me:pass-1@host/a.json?token=pass-2&x=pass-3 {tmp_path}/alice/plans.json"
    monkeypatch.setattr("tracelens.cli._on_this_machine", raising(ZeroDivisionError(f"of {secret}")))
    assert main(["check", *secret.split()]) == 70
    (file,) = tmp_path.glob("tracelens-error-*.txt")
    for text in (file.read_text(), capsys.readouterr().err):
        assert not any(word in text for word in ("pass-", "me:", "alice"))
        assert "https://...@host/a.json?..." in text
    assert without_secrets("what? a@b.c x?y=1") == "what? a@b.c x?y=1"


@pytest.fixture
def endless() -> Iterator[str]:
    """A server that sends without an end, quickly or slowly."""
    stopped = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            while not stopped.is_set():
                try:
                    self.wfile.write(b"[" * 65536)
                except OSError:
                    return
                if "slow" in self.path:
                    time.sleep(0.05)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server:
        yield f"http://127.0.0.1:{server.server_port}"
        stopped.set()
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "most_bytes", "most_s", "said"),
    [("/a.json", 2**20, 60.0, "larger than the 0.00105 GB that a command fetches"), ("/slow.json", 2**34, 0.5, "took longer than the 0.00833 min")],
)  # fmt: skip
def test_an_address_that_never_ends_is_left(endless, path, most_bytes, most_s, said, monkeypatch, capsys) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "MOST_BYTES", most_bytes)
    monkeypatch.setattr(remote, "MOST_S", most_s)
    assert main(["check", endless + path]) == 1
    assert f"{endless}{path}: it" in (shown := capsys.readouterr().err)
    assert said in shown


class _Store:
    """As fsspec's stores are called: sends blocks without an end, or nothing at all."""

    def __init__(self, block: int) -> None:
        self.block = block

    def get_file(self, name: str, target: str, callback: Any) -> None:
        while True:
            time.sleep(0.001)
            if self.block:
                callback.relative_update(self.block)


@pytest.mark.parametrize(("block", "most_s", "said"), [(2**16, 60.0, "it is larger than the"), (0, 0.2, "it took longer than the"), (1, 0.2, "it took longer than the")])  # fmt: skip
def test_a_store_that_never_ends_is_left(block: int, most_s: float, said: str, monkeypatch, capsys) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setattr(remote, "MOST_BYTES", 2**20)
    monkeypatch.setattr(remote, "MOST_S", most_s)
    monkeypatch.setattr(remote, "_store", lambda _: (_Store(block), "a.json"))
    began = time.monotonic()
    assert main(["check", "s3://me:secret@bucket/a.json"]) == 1
    shown = capsys.readouterr().err
    assert f"error: s3://bucket/a.json: {said}" in shown
    assert time.monotonic() - began < 20


SHAPE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "torch_dtype": "bfloat16",
}  # fmt: skip
SCHEMES: tuple[dict[str, Any], ...] = (
    {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["lm_head"]},
    {"quant_method": "awq", "bits": 4, "group_size": 128},
    {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a.mlp": {"quant_algo": "FP8"}}, "kv_cache_scheme": {"num_bits": 8}},
    {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "group_size": 32, "block_structure": [128, 128]}, "input_activations": {"num_bits": 8}}}},
    {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}, "input_activations": None}}},
)  # fmt: skip
ODD = (
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    "text",
    "",
    [],
    [[]],
    [128, []],
    [128, "x"],
    [128, None],
    [1, 2, 3],
    {},
    {"a": []},
    [1e308, 1e308],
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


@pytest.mark.parametrize("scheme", part(SCHEMES, 2), ids=lambda scheme: str(scheme["quant_method"]))
def test_odd_types_in_a_checkpoints_scheme_are_a_sentence(scheme: dict[str, Any], tmp_path: Path, capsys) -> None:
    path = tmp_path / "config.json"
    for at in (place for place in places(scheme) if place):
        for odd in ODD:
            changed = copy.deepcopy(scheme)
            inner = changed
            for key in at[:-1]:
                inner = inner[key]
            inner[at[-1]] = odd
            path.write_text(json.dumps(SHAPE | {"quantization_config": changed}))
            code = main(["models", "show", str(path)])
            said = capsys.readouterr().err
            assert code in (0, 1, 2), (at, odd, said)
            assert said.count("\n") == (code > 0), (at, odd, said)


def test_a_block_that_is_none_says_what_it_must_be(tmp_path: Path, capsys) -> None:
    path = tmp_path / "config.json"
    for odd in ([128, []], "128", [128]):
        path.write_text(json.dumps(SHAPE | {"quantization_config": {**SCHEMES[0], "weight_block_size": odd}}))
        assert main(["models", "show", str(path)]) == 1
        assert "config.json: weight_block_size must be two whole numbers, got" in capsys.readouterr().err


def test_a_second_refusal_on_the_way_out_costs_no_figure_of_the_sentence(monkeypatch, capsys) -> None:
    monkeypatch.setattr("tracelens.cli._parsed", lambda _: argparse.Namespace(max_memory=1.5, run=raising(KeyError())))

    @contextmanager
    def interrupted(gb: float | None) -> Iterator[None]:
        with suppress(KeyError), limited(gb):
            yield
        raise MemoryError

    monkeypatch.setattr("tracelens.files.memory_limit.limited", interrupted)
    assert main(["ops"]) == 1
    assert "it needs more than the 1.5 GB of --max-memory; 0." in capsys.readouterr().err
