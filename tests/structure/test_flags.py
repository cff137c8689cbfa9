"""The flags of every verb are a decision: a change shows here, in a diff."""

from __future__ import annotations

import argparse
import re

from docs import generate_options
from tests.conftest import row_by_row
from tracelens.cli import verbs

FLAGS: dict[str, str] = {
    "anonymize": ("TRACE --output -o"),
    "calibrate": ("FILES --cluster --device --extension --output -o"),
    "check": ("TRACE --device --extension"),
    "collectives": (
        "TRACE --all-sheets --column-names --csv --ep-size --executor --extension --format --jobs --output --ranks-per-node -o"
    ),
    "baseline": ("save save:NAME save:TRACE save:--baselines save:--steps list list:--baselines"),
    "compare": ("A B --baselines --device --extension --format --gate --output --steps -o"),
    "completion": ("SHELL"),
    "demo": ("--output -o"),
    "devices": ("list show show:NAME check check:FILE"),
    "estimate": (
        "gemm gemm:--b gemm:--backend gemm:--backward gemm:--batch gemm:--device gemm:--dtype gemm:--gpu-clock-mhz gemm:--k gemm:--library gemm:--m gemm:--n gemm:--output gemm:-o grouped-gemm grouped-gemm:--backend grouped-gemm:--backward grouped-gemm:--batch grouped-gemm:--device grouped-gemm:--dtype grouped-gemm:--gpu-clock-mhz grouped-gemm:--groups grouped-gemm:--k grouped-gemm:--m grouped-gemm:--n grouped-gemm:--output grouped-gemm:--rows grouped-gemm:-o sdpa sdpa:--b sdpa:--backend sdpa:--backward sdpa:--batch sdpa:--d-qk sdpa:--d-v sdpa:--device sdpa:--dtype sdpa:--gpu-clock-mhz sdpa:--kv-heads sdpa:--latent sdpa:--no-causal sdpa:--output sdpa:--q-heads sdpa:--s-kv sdpa:--s-q sdpa:--window sdpa:-o moe moe:--backend moe:--backward moe:--batch moe:--device moe:--distribution moe:--dtype moe:--ep moe:--experts moe:--ffn moe:--gpu-clock-mhz moe:--hidden moe:--no-gate moe:--output moe:--tokens moe:--topk moe:--tp moe:-o context-attention context-attention:--backend context-attention:--backward context-attention:--batch context-attention:--device context-attention:--dtype context-attention:--gpu-clock-mhz context-attention:--output context-attention:-o generation-attention generation-attention:--backend generation-attention:--backward generation-attention:--batch generation-attention:--device generation-attention:--dtype generation-attention:--gpu-clock-mhz generation-attention:--output generation-attention:-o encoder-attention encoder-attention:--backend encoder-attention:--backward encoder-attention:--batch encoder-attention:--device encoder-attention:--dtype encoder-attention:--gpu-clock-mhz encoder-attention:--library encoder-attention:--output encoder-attention:-o context-mla context-mla:--backend context-mla:--backward context-mla:--batch context-mla:--device context-mla:--dtype context-mla:--gpu-clock-mhz context-mla:--library context-mla:--output context-mla:-o generation-mla generation-mla:--backend generation-mla:--backward generation-mla:--batch generation-mla:--device generation-mla:--dtype generation-mla:--gpu-clock-mhz generation-mla:--library generation-mla:--output generation-mla:-o mla-context-module mla-context-module:--backend mla-context-module:--backward mla-context-module:--batch mla-context-module:--device mla-context-module:--dtype mla-context-module:--gpu-clock-mhz mla-context-module:--library mla-context-module:--output mla-context-module:-o mla-generation-module mla-generation-module:--backend mla-generation-module:--backward mla-generation-module:--batch mla-generation-module:--device mla-generation-module:--dtype mla-generation-module:--gpu-clock-mhz mla-generation-module:--library mla-generation-module:--output mla-generation-module:-o dsa-context-module dsa-context-module:--backend dsa-context-module:--backward dsa-context-module:--batch dsa-context-module:--device dsa-context-module:--dtype dsa-context-module:--gpu-clock-mhz dsa-context-module:--library dsa-context-module:--output dsa-context-module:-o dsa-generation-module dsa-generation-module:--backend dsa-generation-module:--backward dsa-generation-module:--batch dsa-generation-module:--device dsa-generation-module:--dtype dsa-generation-module:--gpu-clock-mhz dsa-generation-module:--library dsa-generation-module:--output dsa-generation-module:-o moe-mxfp4 moe-mxfp4:--backend moe-mxfp4:--backward moe-mxfp4:--batch moe-mxfp4:--device moe-mxfp4:--dtype moe-mxfp4:--gpu-clock-mhz moe-mxfp4:--library moe-mxfp4:--output moe-mxfp4:-o wideep-moe wideep-moe:--backend wideep-moe:--backward wideep-moe:--batch wideep-moe:--device wideep-moe:--dtype wideep-moe:--gpu-clock-mhz wideep-moe:--library wideep-moe:--output wideep-moe:-o moe-aiter moe-aiter:--backend moe-aiter:--backward moe-aiter:--batch moe-aiter:--device moe-aiter:--dtype moe-aiter:--gpu-clock-mhz moe-aiter:--library moe-aiter:--output moe-aiter:-o mla-bmm mla-bmm:--backend mla-bmm:--backward mla-bmm:--batch mla-bmm:--device mla-bmm:--dtype mla-bmm:--gpu-clock-mhz mla-bmm:--library mla-bmm:--output mla-bmm:-o quantize-matrix quantize-matrix:--backend quantize-matrix:--backward quantize-matrix:--batch quantize-matrix:--device quantize-matrix:--dtype quantize-matrix:--gpu-clock-mhz quantize-matrix:--library quantize-matrix:--output quantize-matrix:-o quantize-scale quantize-scale:--backend quantize-scale:--backward quantize-scale:--batch quantize-scale:--device quantize-scale:--dtype quantize-scale:--gpu-clock-mhz quantize-scale:--library quantize-scale:--output quantize-scale:-o custom-allreduce custom-allreduce:--backend custom-allreduce:--backward custom-allreduce:--batch custom-allreduce:--device custom-allreduce:--dtype custom-allreduce:--gpu-clock-mhz custom-allreduce:--library custom-allreduce:--output custom-allreduce:-o nccl nccl:--backend nccl:--backward nccl:--batch nccl:--device nccl:--dtype nccl:--gpu-clock-mhz nccl:--library nccl:--output nccl:-o trtllm-alltoall trtllm-alltoall:--backend trtllm-alltoall:--backward trtllm-alltoall:--batch trtllm-alltoall:--device trtllm-alltoall:--dtype trtllm-alltoall:--gpu-clock-mhz trtllm-alltoall:--library trtllm-alltoall:--output trtllm-alltoall:-o gdn gdn:--backend gdn:--backward gdn:--batch gdn:--device gdn:--dtype gdn:--gpu-clock-mhz gdn:--library gdn:--output gdn:-o kda kda:--backend kda:--backward kda:--batch kda:--device kda:--dtype kda:--gpu-clock-mhz kda:--library kda:--output kda:-o mamba2 mamba2:--backend mamba2:--backward mamba2:--batch mamba2:--device mamba2:--dtype mamba2:--gpu-clock-mhz mamba2:--library mamba2:--output mamba2:-o gemm-aiter gemm-aiter:--backend gemm-aiter:--backward gemm-aiter:--batch gemm-aiter:--device gemm-aiter:--dtype gemm-aiter:--gpu-clock-mhz gemm-aiter:--library gemm-aiter:--output gemm-aiter:-o collective collective:--batch collective:--bytes collective:--cluster collective:--collective collective:--device collective:--op collective:--output collective:--ranks collective:--stride collective:-o ep ep:--batch ep:--cluster ep:--device ep:--experts ep:--hidden ep:--kernels ep:--output ep:--ranks ep:--sms ep:--tokens ep:--topk ep:-o"
    ),
    "extensions": ("list check check:EXTENSION new new:OP new:--from new:--output new:-o"),
    "fuse": (
        "TRACE --category --executor --jobs --no-clocks --no-counters --output --ranks --ranks-per-node --window -o"
    ),
    "ingest": ("FOLDER --executor --jobs --to"),
    "mcp": ("--root"),
    "models": ("list list:--format show show:NAME show:--format show:--sequence"),
    "ops": ("PATTERN --extension"),
    "perfetto": ("TRACE --output -o"),
    "project": (
        "--activation-inputs --against --anchor --attention --attention-factor --backend --batch --bf16-layers --cluster --co2-per-kwh --cp --dispatcher --document --ep --ep-overlap --etp --framework --from-report --fsdp-overlap --fused-loss --gemm-factor --global-batch --gpu-clock-mhz --gpus --gradients --graphs --host-us --launch --lora --memory-factor --micro-batch --model --moments --no-sequence-parallel --nodes --offload-layers --output --power --pp --precision --price-per-kwh --products-factor --pue --recompute --recompute-layers --recompute-modules --schedule --sequence --sequential-experts --shard --skew --straggler --sweep --tp --tp-overlap --trace --trace-ranks --traced --vpp --zero -o"
    ),
    "record": ("--for --list"),
    "replay": ("TRACE --op --output --top -o"),
    "report": (
        "TRACE --all-sheets --backend --batch --brief --capture --check --column-names --counters --cpu --csv --device --ep-size --extension --format --gpu-clock-mhz --inductor --memory-snapshot --model --open --output --overlap --power --rank --ranks --sequence --shapes --steps --tokens-per-step -o"
    ),
    "route": (
        "--base-delay-ms --best-groups --capacity --cluster --combine-dtype --compare --config --dispatch --dispatch-dtype --drift --experts --format --groups --hidden --hot-ratio --hot-weight --id-bytes --initial-delay-ms --inter-gb-s --intra-bytes-per-ms --layers --link-gb-s --links --log --nic-bytes-per-round --output --overlap --packet-bytes --packet-delay-ms --packets-per-turn --placement --ranks --ranks-per-node --routing --routing-bytes --rules --save-routing --seed --skew --slots --steps --tokens --topk --unit-bytes --way --weight-bytes -o"
    ),
    "query": (
        "TRACE STATEMENT --backend --batch --capture --counters --cpu --device --ep-size --extension --format --gpu-clock-mhz --inductor --list --memory-snapshot --model --output --overlap --power --rank --ranks --ready --sequence --shapes --steps --tokens-per-step -o"
    ),
    "score": ("FILE --family --format --output --public -o"),
    "search": (
        "--attention --backend --cluster --compare --concurrency --engine --executor --explain --fix --forbid --framework --global-batch --gpus --input-tokens --jobs --max-gpus --memory-headroom --model --objective --output --output-tokens --pareto --plot --precision --price-per-gpu-hour --rate --rules --save-system --sequence --serve --slo --strategy --sweep --top -o"
    ),
    "serve": (
        "--adapters --arrivals --backend --batch --block-tokens --calibrate --cluster --co2-per-kwh --collective --concurrency --config --contention --cpu-cache --device --disk-cache --dp --draft-model --duration --engine --ep --export-profile --find-max-goodput --format --imbalance --input --input-tokens --jitter --kv --kv-link --kv-tokens --kv-transfer --lod --lora --max-batched-tokens --max-loras --max-num-seqs --model --order --out --output --output-tokens --overlap --policy --pp --preemption --prefill-cluster --prefill-device --prefill-dp --prefill-engine --prefill-ep --prefill-max-batched-tokens --prefill-pp --prefill-replicas --prefill-tp --prefill-weights --price-per-gpu-hour --price-per-kwh --profile --pue --rate --redundant-experts --replay --replicas --requests --router --run --scenarios --scheduler-recv-interval --seed --shared-groups --shared-prefix --simulator-profile --skew --slo --speculate --sweep --think-time --tp --trace --turns --variation --weights -o"
    ),
    "convert": ("TRACE --output -o"),
    "skill": ("--output -o"),
    "slim": ("TRACE --category --output --rank --steps -o"),
    "whatif": (
        "TRACE --apply --batch --clock --device --format --fuse --graphs --output --overlap --pad --power-limit --precision --ranks --remove --scale --sdpa --steps -o"
    ),
}


def flags(verb: str) -> str:
    """All flags of a verb and of its own verbs (``list:--x``), sorted, positional arguments first."""
    parser = argparse.ArgumentParser()
    verbs.verb(verb).configure(parser)
    return " ".join(_names(parser))


def _names(parser: argparse.ArgumentParser, prefix: str = "") -> list[str]:
    positional, optional = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                positional += [f"{prefix}{name}", *_names(below, f"{prefix}{name}:")]
        elif not action.option_strings:
            positional.append(f"{prefix}{action.dest.upper()}")
        elif "--help" not in action.option_strings:
            optional += [f"{prefix}{option}" for option in action.option_strings]
    return [*positional, *sorted(optional)]


def test_the_verbs_are_frozen() -> None:
    assert sorted(FLAGS) == list(verbs.VERBS)


@row_by_row("verb", sorted(FLAGS))
def test_the_flags_of_a_verb_are_frozen(verb: str) -> None:
    assert flags(verb) == FLAGS[verb]


@row_by_row("verb", sorted(FLAGS))
def test_flags_are_kebab_case(verb: str) -> None:
    for flag in flags(verb).split():
        name = flag.rpartition(":")[2]
        assert not name.startswith("--") or name == name.lower().replace("_", "-"), flag


def test_the_options_on_the_command_page_are_those_of_the_command() -> None:
    text = generate_options.PAGE.read_text(encoding="utf-8")
    assert generate_options.page(text) == text
    assert generate_options.page(text.replace("also write csv/", "writes no csv/")) == text


def test_every_option_says_what_it_does() -> None:
    assert re.findall(r"^\| `.*` \|\s*\|$", generate_options.PAGE.read_text(encoding="utf-8"), re.MULTILINE) == []


def test_what_most_of_a_verbs_own_verbs_take_is_told_once_with_those_that_do_not() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    own = parser.add_subparsers()
    for name in ("a", "b", "c"):
        below = own.add_parser(name, help=f"does {name}")
        if name != "c":
            below.add_argument("--size", metavar="N", help="how large")
        below.add_argument("--fast", action="store_true", help="hurries")
    assert generate_options._rows(parser._actions) == [
        ("`--size N`", "how large (all but `c`)"),
        ("`--fast`", "hurries"),
        ("`a`", "does a"),
        ("`b`", "does b"),
        ("`c`", "does c"),
    ]
