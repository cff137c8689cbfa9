"""The flags of every verb are a decision: a change shows here, in a diff."""

from __future__ import annotations

import argparse

import pytest

from docs import generate_options
from tracelens import cli

FLAGS: dict[str, str] = {
    "calibrate": ("FILES --cluster --device --extension --output -o"),
    "check": ("TRACE --device --extension"),
    "collectives": ("TRACE --csv --ep-size --executor --extension --format --jobs --output --ranks-per-node -o"),
    "compare": ("A B --format --output --steps -o"),
    "demo": ("--output -o"),
    "devices": ("list show show:NAME check check:FILE"),
    "estimate": (
        "gemm gemm:--b gemm:--backend gemm:--backward gemm:--batch gemm:--device gemm:--dtype gemm:--gpu-clock-mhz gemm:--k gemm:--m gemm:--n gemm:--output gemm:-o grouped-gemm grouped-gemm:--backend grouped-gemm:--backward grouped-gemm:--batch grouped-gemm:--device grouped-gemm:--dtype grouped-gemm:--gpu-clock-mhz grouped-gemm:--groups grouped-gemm:--k grouped-gemm:--m grouped-gemm:--n grouped-gemm:--output grouped-gemm:--rows grouped-gemm:-o sdpa sdpa:--b sdpa:--backend sdpa:--backward sdpa:--batch sdpa:--d-qk sdpa:--d-v sdpa:--device sdpa:--dtype sdpa:--gpu-clock-mhz sdpa:--kv-heads sdpa:--latent sdpa:--no-causal sdpa:--output sdpa:--q-heads sdpa:--s-kv sdpa:--s-q sdpa:--window sdpa:-o moe moe:--backend moe:--backward moe:--batch moe:--device moe:--distribution moe:--dtype moe:--ep moe:--experts moe:--ffn moe:--gpu-clock-mhz moe:--hidden moe:--no-gate moe:--output moe:--tokens moe:--topk moe:--tp moe:-o context-attention context-attention:--backend context-attention:--backward context-attention:--batch context-attention:--device context-attention:--dtype context-attention:--gpu-clock-mhz context-attention:--output context-attention:-o generation-attention generation-attention:--backend generation-attention:--backward generation-attention:--batch generation-attention:--device generation-attention:--dtype generation-attention:--gpu-clock-mhz generation-attention:--output generation-attention:-o context-mla context-mla:--backend context-mla:--backward context-mla:--batch context-mla:--device context-mla:--dtype context-mla:--gpu-clock-mhz context-mla:--output context-mla:-o generation-mla generation-mla:--backend generation-mla:--backward generation-mla:--batch generation-mla:--device generation-mla:--dtype generation-mla:--gpu-clock-mhz generation-mla:--output generation-mla:-o collective collective:--batch collective:--bytes collective:--cluster collective:--collective collective:--device collective:--op collective:--output collective:--ranks collective:--stride collective:-o ep ep:--batch ep:--cluster ep:--device ep:--experts ep:--hidden ep:--kernels ep:--output ep:--ranks ep:--sms ep:--tokens ep:--topk ep:-o"
    ),
    "extensions": ("list check check:EXTENSION new new:OP new:--from new:--output new:-o"),
    "fuse": (
        "TRACE --category --executor --jobs --no-clocks --no-counters --output --ranks --ranks-per-node --window -o"
    ),
    "models": ("list list:--format show show:NAME show:--format show:--sequence"),
    "ops": ("PATTERN --extension"),
    "project": (
        "--against --anchor --attention --attention-factor --backend --batch --bf16-layers --cluster --cp --dispatcher --document --ep --ep-overlap --etp --framework --from-report --fsdp-overlap --gemm-factor --global-batch --gpu-clock-mhz --gpus --gradients --graphs --host-us --launch --memory-factor --micro-batch --model --no-sequence-parallel --nodes --output --power --pp --precision --products-factor --recompute --recompute-layers --recompute-modules --schedule --sequence --sequential-experts --shard --skew --straggler --sweep --tp --tp-overlap --trace --trace-ranks --traced --vpp --zero -o"
    ),
    "report": (
        "TRACE --backend --batch --capture --check --cpu --csv --device --ep-size --extension --format --gpu-clock-mhz --max-memory --model --open --output --overlap --rank --ranks --sequence --steps --tokens-per-step -o"
    ),
    "route": (
        "--base-delay-ms --best-groups --capacity --cluster --combine-dtype --compare --config --dispatch --dispatch-dtype --drift --experts --format --groups --hidden --hot-ratio --hot-weight --id-bytes --initial-delay-ms --inter-gb-s --intra-bytes-per-ms --layers --link-gb-s --links --log --nic-bytes-per-round --output --overlap --packet-bytes --packet-delay-ms --packets-per-turn --placement --ranks --ranks-per-node --routing --routing-bytes --rules --save-routing --seed --skew --slots --steps --tokens --topk --unit-bytes --way --weight-bytes -o"
    ),
    "search": (
        "--backend --cluster --executor --explain --fix --forbid --global-batch --gpus --jobs --max-gpus --memory-headroom --model --objective --output --pareto --plot --precision --price-per-gpu-hour --rules --sequence --strategy --sweep --top -o"
    ),
    "serve": (
        "--arrivals --backend --batch --block-tokens --calibrate --cluster --collective --concurrency --config --contention --device --dp --draft-model --duration --engine --ep --export-profile --find-max-goodput --format --imbalance --input --input-tokens --kv --kv-link --kv-tokens --lod --max-batched-tokens --max-num-seqs --model --order --out --output --output-tokens --policy --pp --preemption --prefill-replicas --price-per-gpu-hour --profile --rate --replay --replicas --requests --router --run --scenarios --seed --shared-groups --shared-prefix --skew --slo --speculate --sweep --tp --trace --variation --weights -o"
    ),
    "whatif": (
        "TRACE --batch --clock --device --format --fuse --graphs --output --overlap --pad --precision --ranks --remove --scale --sdpa -o"
    ),
}


def flags(verb: str) -> str:
    """All flags of a verb and of its own verbs (``list:--x``), sorted, positional arguments first."""
    parser = argparse.ArgumentParser()
    cli.verb_module(verb).configure(parser)
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
    assert sorted(FLAGS) == cli.verbs()


@pytest.mark.parametrize("verb", sorted(FLAGS))
def test_the_flags_of_a_verb_are_frozen(verb: str) -> None:
    assert flags(verb) == FLAGS[verb]


@pytest.mark.parametrize("verb", sorted(FLAGS))
def test_flags_are_kebab_case(verb: str) -> None:
    for flag in flags(verb).split():
        name = flag.rpartition(":")[2]
        assert not name.startswith("--") or name == name.lower().replace("_", "-"), flag


def test_the_options_on_the_command_page_are_those_of_the_command() -> None:
    text = generate_options.PAGE.read_text(encoding="utf-8")
    assert generate_options.page(text) == text
    assert generate_options.page(text.replace("also write csv/", "writes no csv/")) == text
