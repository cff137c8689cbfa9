"""What ``VERB --help`` shows of a verb's options, and its examples; ``--help-all`` shows all options."""

from __future__ import annotations

from typing import NamedTuple


class Common(NamedTuple):
    """``options``: names without dashes, or of a verb's own verbs, in their order; none: all of them."""

    options: str = ""
    examples: tuple[str, ...] = ()


def _of(*examples: str, options: str = "") -> Common:
    return Common(options, examples)


#: By verb, and by own verb of a verb.
COMMON = {
    "report": _of(
        "tracelens trace.json.gz",
        "tracelens report trace.json.gz --steps steady --device h100 -o out.report",
        options="output open steps rank device backend model extension csv format",
    ),
    "compare": _of(
        "tracelens compare before.json.gz after.json.gz",
        "tracelens compare baseline:main new.json.gz --gate 'step<+3%'",
    ),
    "collectives": _of(
        "tracelens collectives traces/",
        "tracelens collectives traces/ -o job.html",
        options="output ep-size ranks-per-node extension jobs csv format",
    ),
    "whatif": _of(
        "tracelens whatif trace.json.gz --scale GEMM=0.5",
        "tracelens whatif trace.json.gz --device b200",
        options="apply scale remove device precision batch graphs fuse overlap steps output",
    ),
    "query": _of(
        "tracelens query trace.json.gz --list",
        'tracelens query trace.json.gz "SELECT name, kernel_us_sum FROM ops LIMIT 5"',
        options="list ready steps device rank format output",
    ),
    "check": _of("tracelens check trace.json.gz"),
    "demo": _of("tracelens demo"),
    "estimate": _of(
        "tracelens estimate gemm --m 8192 --n 8192 --k 8192 --device h200",
        "tracelens estimate collective --op all_reduce --bytes 1GB --ranks 16 --cluster dgx-h200",
        options="gemm grouped-gemm sdpa moe collective ep",
    ),
    "estimate gemm": _of(
        "tracelens estimate gemm --m 8192 --n 28672 --k 8192 --device h200,b200",
        "tracelens estimate gemm --batch in.csv -o out.csv --device h200",
        options="m n k b dtype device backend backward batch output",
    ),
    "estimate grouped-gemm": _of(
        "tracelens estimate grouped-gemm --m 4096 --groups 8 --n 4096 --k 7168 --device h200",
        options="m groups rows n k dtype device backend batch output",
    ),
    "estimate sdpa": _of(
        "tracelens estimate sdpa --b 1 --s-q 8192 --q-heads 32 --kv-heads 8 --d-qk 128 --device h200",
        options="s-q s-kv q-heads kv-heads d-qk b no-causal dtype device backward batch output",
    ),
    "estimate moe": _of(
        "tracelens estimate moe --tokens 4096 --hidden 7168 --ffn 2048 --experts 256 --topk 8 --ep 8 --device h200",
        options="tokens hidden ffn experts topk ep tp dtype device distribution batch output",
    ),
    "estimate collective": _of(
        "tracelens estimate collective --op all_reduce --bytes 1GB --ranks 16 --cluster dgx-h200",
    ),
    "estimate ep": _of(
        "tracelens estimate ep --tokens 4096 --hidden 7168 --topk 8 --experts 256 --ranks 16 --cluster dgx-h200",
    ),
    "project": _of(
        "tracelens project --model llama3-70b --cluster dgx-h100 --gpus 64",
        "tracelens project --model llama3-70b --cluster dgx-h100 --gpus 64 --sweep tp=1,2,4,8 -o table.csv",
        options="model cluster gpus global-batch sequence tp pp ep zero precision recompute output",
    ),
    "search": _of(
        "tracelens search --model llama3-70b --cluster dgx-h100 --gpus 64 --global-batch 128",
        options="model cluster gpus global-batch sequence precision top fix forbid objective output",
    ),
    "serve": _of(
        "tracelens serve --model llama3.1-8b --device h100",
        "tracelens serve --model llama3.1-70b --cluster dgx-h100 --tp 4 --rate 2 --slo ttft=500ms,tpot=50ms",
        options="model cluster tp rate concurrency input-tokens output-tokens slo engine output",
    ),
    "route": _of(
        "tracelens route --cluster dgx-h100 --ranks 16 --experts 256 --topk 8 --tokens 65536",
        "tracelens route --cluster dgx-h100 --ranks 16 --experts 256 --topk 8 --tokens 65536 --skew zipf:1.1",
        options="cluster ranks experts topk tokens hidden skew routing dispatch dispatch-dtype output",
    ),
    "models": _of("tracelens models", "tracelens models show deepseek-v3"),
    "devices": _of("tracelens devices", "tracelens devices show mi300x"),
    "convert": _of("tracelens convert trace.json.gz -o trace.pftrace"),
    "slim": _of("tracelens slim trace.json.gz --steps steady -o small.json.gz"),
    "anonymize": _of("tracelens anonymize trace.json.gz -o clean.json.gz"),
    "replay": _of("tracelens replay trace.json.gz --top 5", "tracelens replay trace.json.gz --op aten::mm"),
    "perfetto": _of("tracelens perfetto trace.json.gz -o annotated.json.gz"),
    "fuse": _of("tracelens fuse traces/", "tracelens fuse traces/ --ranks 0-3 -o four.json.gz"),
    "baseline": _of("tracelens baseline save main trace.json.gz", "tracelens compare baseline:main new.json.gz"),
    "baseline save": _of("tracelens baseline save main trace.json.gz"),
    "ingest": _of("tracelens ingest traces/ --to lake/", "tracelens query lake/ --list"),
    "mcp": _of("tracelens mcp --root traces/"),
    "record": _of("tracelens record --list", 'tracelens record --for "why is rank 3 slow"'),
    "calibrate": _of(
        "tracelens calibrate trace.json.gz gemm.csv --device mi300x -o my_mi300x.toml",
        "tracelens calibrate nccl.csv --cluster dgx-h100 -o my_cluster.toml",
    ),
    "score": _of("tracelens score points.csv"),
    "extensions": _of("tracelens extensions", "tracelens extensions new my_lib::op --from trace.json.gz -o my_op.py"),
    "ops": _of("tracelens ops attention"),
    "completion": _of("source <(tracelens completion bash)"),
}
