"""How InferenceX ran what its rows report, where they do not say it: by its launch scripts and their recipes."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracelens.backends.base import system_of
from tracelens.files.data_table import is_blank
from tracelens.files.documents import toml_of
from tracelens.predict.serving.deployment import Parallelism, compute_of

#: The beginning of ``source`` of its rows.
INFERENCEX = "InferenceX"
#: Requests of its client per user (--num-prompts; srt-slurm's sa-bench too): the first of all users come at once.
PER_USER = 10
RECIPES = toml_of(Path(__file__).with_name("serving_recipes.toml"))["recipes"]
#: Since when plans of verifications no longer stall: sglang#27689 was proposed.
_PLANS_AHEAD = datetime.date(2026, 6, 9)
#: Since when srt-slurm runs GB200: InferenceX's #635.
_SRT_SLURM = datetime.date(2026, 2, 5)
#: MI355X's scripts: AMD's second ones (#674), InferenceX's own, those with SGLang 0.5.9 for FP4, with attention in FP4
#: (#1236), with three drafts for prompts of 8,192 tokens.
_SECOND = datetime.date(2026, 2, 11)
_OWN = datetime.date(2026, 2, 23)
_RELEASE_0_5_9 = datetime.date(2026, 3, 3)
_FP4_ATTENTION = datetime.date(2026, 5, 7)
_LONG_DRAFTS = datetime.date(2026, 5, 29)
#: GPUs of a node of GB200. Its scripts of December 2025 share heads there (--tensor-parallel-size 4,
#: --data-parallel-size 1) where rows say DEP 4: nvidia-master.yaml's numbers "do nothing", as it says itself.
_NODE = 4
_LONG = 8192
_SPECULATES = re.compile(r"(mtp|eagle|nextn|true|yes|on)\b.*|(mtp|eagle)[0-9].*|[1-9][0-9]?(\.0)?", re.IGNORECASE)


def text_of(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    return "" if is_blank(value) else str(value).strip()


def speculates(row: Mapping[str, Any]) -> bool:
    return _SPECULATES.fullmatch(text_of(row, "spec_decoding")) is not None


def launched(
    row: Mapping[str, Any], date: datetime.date | None, users: int, longest: int, pools: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of ``ServingPoint`` in which a row of InferenceX was run otherwise than its cells and its engine say;
    ``longest``: tokens of its longest prompt, ``pools``: those of its cells. None of another source's row.
    """
    if not text_of(row, "source").startswith(INFERENCEX):
        return {}
    found: dict[str, Any] = {"per_user": PER_USER}
    is_apart, engine = "prefill" in pools, text_of(row, "backend").lower()
    if is_apart:
        found |= _by_recipe(row, date or datetime.date.max)
    if engine == "trtllm" and is_apart:
        found |= _of_recipe(row, users, longest >= _LONG, pools)
    if engine == "sglang":
        found |= _of_sglang(row, date, users, longest >= _LONG, pools)
    return found


def _of_sglang(
    row: Mapping[str, Any], date: datetime.date | None, users: int, is_long: bool, pools: Mapping[str, Any]
) -> Mapping[str, Any]:
    compute, is_apart = compute_of(system_of(text_of(row, "system"))[0].device), "prefill" in pools
    if compute == "9.0":
        return _drafts_on_hopper(row, date or datetime.date.max)
    if compute == "9.5":
        return _of_mori(row, date, users, is_long, pools) if is_apart and date is not None else {}
    if not compute.startswith("10."):
        return {}
    if is_apart and text_of(row, "system").lower() == "gb200":
        return _of_dynamo(pools, date or datetime.date.max)
    return {"recv_interval": 30 if users >= 16 else 10}


def _by_recipe(row: Mapping[str, Any], day: datetime.date) -> Mapping[str, Any]:
    """What the launch line sets (``RECIPES``)."""
    runs = (each for each in RECIPES if "before" not in each or day < each["before"])
    return next((each["settings"] for each in runs if all(row.get(k) == v for k, v in each["rows"].items())), {})


def _of_dynamo(pools: Mapping[str, Any], day: datetime.date) -> dict[str, Any]:
    """Dynamo's SGLang on GB200, by ai-dynamo/dynamo's examples/backends/sglang/slurm_jobs/scripts/gb200-fp8/disagg/*.sh
    in December 2025, by ishandhanani/srt-slurm's recipes/gb200-fp8/* in February 2026: where ranks share heads it looks
    for requests at every tenth step (1p_4d.sh, 8k1k-low-latency.sh, low-latency.yaml). Its slurm_jobs'
    scripts/vllm/bench.sh sends 5 requests per user, until InferenceX's #635.
    """
    found: dict[str, Any] = {"per_user": 5} if day < _SRT_SLURM else {}
    for name in ("parallelism", "prefill"):
        said = pools[name]
        if (said.tp, said.dp) == (1, _NODE):
            found[name] = Parallelism(tp=_NODE)
    is_shared = found.get("parallelism", pools["parallelism"]).dp == 1
    return found | {"recv_interval": 10 if is_shared else 1}


def _of_recipe(row: Mapping[str, Any], users: int, is_long: bool, pools: Mapping[str, Any]) -> dict[str, Any]:
    """TensorRT-LLM by recipes/trtllm of srt-slurm, on Hopper of ishandhanani's (sa-submission-q1-2026): prefill workers
    have data-parallel attention, but share each prompt on H200 where those are of 8,192 tokens (trtllm/h200/8k1k:
    enable_attention_dp is false in all). Rows repeat nvidia-master.yaml, of which twins of two days contradict each
    other. ``slots``, max_batch_size where it decodes: the largest power of two that all users fill, 1 for two; on H200
    1 in recipes for one user (trtllm/h200/*/c1_*_batch1), and more than there are users in others (16 to 512).
    """
    found: dict[str, Any] = {}
    prefill, is_h200 = pools["prefill"], system_of(text_of(row, "system"))[0].device.name == "h200-sxm"
    ranks = prefill.stage_devices
    if prefill.ep == ranks and 1 in (prefill.tp, prefill.dp):
        found["prefill"] = Parallelism(tp=ranks, ep=ranks) if is_h200 and is_long else Parallelism(dp=ranks, ep=ranks)
    each = users // (pools["replicas"] * pools["parallelism"].dp)
    slots = 1 if each <= 2 else 1 << each.bit_length() - 1
    return found | {"slots": 0 if is_h200 and each > 1 else slots}


def _drafts_on_hopper(row: Mapping[str, Any], day: datetime.date) -> dict[str, Any]:
    """SGLang has two drafts and FlashInfer (dsr1_fp8_h200_mtp.sh, srt-slurm's recipes/h100), whose plan of a
    verification stalled the host before every graph: drafts gained nothing (sglang#27689). How long it stalls is not
    published: as long as eager launches is assumed. LMSYS had 2.18 tokens a step with two drafts, 2.44 with three
    (2025-07-17): each is right with 0.69.
    """
    if not speculates(row):
        return {}
    return {"speculation": "mtp:2:0.69", "eager_drafts": "all" if day < _PLANS_AHEAD else ""}


def _of_mori(
    row: Mapping[str, Any], date: datetime.date, users: int, is_long: bool, pools: Mapping[str, Any]
) -> dict[str, Any]:
    """SGLang with AMD's MoRI on MI355X, by benchmarks/multi_node/amd_utils (server.sh, models.yaml, env.sh), and until
    2026-02 billishyahao/sglang_disagg (sglang_disagg_server.sh), behind a router that picks at random.

    FP4 has prompts' attention in FP4, and on data-parallel ranks overlapped halves of a batch, since #1236 ("enable v2
    mxfp4 DSR1 0528 model"; models.yaml: enable_two_batch_overlap): that checkpoint's attention is in MXFP4, earlier
    ones' in BF16 (their cards: exclude_layers="*self_attn*"). Not where it decodes: products of few tokens have kernels
    of their own there (sglang#9671), of which no times are published. Before March all its experts are on all devices,
    whatever the configuration said (17c39b9).
    """
    is_fp4 = text_of(row, "precision").lower() == "fp4"
    is_all_fp4 = is_fp4 and date >= _FP4_ATTENTION
    if is_fp4 and date < _RELEASE_0_5_9:
        pools = dict(pools)
        for name in ("parallelism", "prefill"):
            pools[name] = dataclasses.replace(pools[name], ep=pools[name].stage_devices)
    found: dict[str, Any] = {**pools, "router": "random"} | _limits_of_mori(is_fp4, date, pools)
    # --load-balance-method round_robin deals prompts out in turns since sglang#19168, which FP4's 0.5.10 has; before
    # 0.5.8 a request's random number chose its ranks. Rows that name no release had that of other rows of their days
    if is_all_fp4:
        found |= {"prompt_linear": "fp4", "prompt_overlap": "two-batch" if pools["prefill"].dp > 1 else ""}
        found["chance_ranks"] = "none"
    elif date < (_RELEASE_0_5_9 if is_fp4 else _SECOND):
        found["chance_ranks"] = "both"
    if speculates(row) and pools["parallelism"].dp == pools["parallelism"].ep == 1:
        found |= _drafts_of_mori(is_fp4, date, users <= 32 or (is_long and date >= _LONG_DRAFTS))
    return found


def _drafts_of_mori(is_fp4: bool, date: datetime.date, drafts_more: bool) -> dict[str, Any]:
    """DECODE_MTP_SIZE of amd-master.yaml, each draft as right as on Hopper."""
    drafts = (3 if date >= _RELEASE_0_5_9 and drafts_more else 1) if is_fp4 else 2 if date >= _SECOND else 1
    return {"speculation": f"mtp:{drafts}:0.69"} if drafts > 1 else {}


def _limits_of_mori(is_fp4: bool, date: datetime.date, pools: Mapping[str, Any]) -> dict[str, Any]:
    """--max-running-requests is of all ranks, and a prompt counts until its cache has left; --chunked-prefill-size is
    of all ranks, too, and where it is 262,144, SGLang's default --max-prefill-tokens ends a batch at 16,384. Ranks that
    decode had more places than users before ``_OWN``.
    """
    decode, prompts, is_all_fp4 = pools["parallelism"], pools["prefill"], is_fp4 and date >= _FP4_ATTENTION
    slots, tokens, places = 256 if decode.ep > 1 else 128, 16384, 128
    if decode.dp > 1:
        slots = 512 if is_all_fp4 else 160 if date >= _OWN else 0
    if prompts.dp > 1:
        places = (4096 if is_all_fp4 else 24 if date >= _SECOND else 8) // prompts.dp
        tokens = 8192 if date >= _FP4_ATTENTION else 2048 if is_fp4 and date < _RELEASE_0_5_9 else 16384
    return {"slots": slots, "prompt_tokens": tokens, "prompt_slots": places}
