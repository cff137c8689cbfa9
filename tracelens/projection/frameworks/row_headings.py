"""How published tables head their columns, and cells that say nothing: rows under the names that a projection reads."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracelens.files.published_cells import Headings, is_unsaid, number
from tracelens.lazy.patterns import lazy_pattern

#: Name -> headings beside it.
HEADINGS = Headings({
    "model": ("modelname", "modelpath", "network", "workload", "llm", "architecture"),
    "gpu": ("system", "device", "hardware", "gputype", "gpumodel", "accelerator", "chip", "platform", "sku"),
    "n_gpus": (
        "gpus", "numgpus", "ngpus", "ofgpus", "noofgpus", "gpucount", "numberofgpus", "totalgpus", "worldsize",
        "devices", "chips", "numchips", "ndevices", "numdevices", "ranks", "scale",
    ),
    "nodes": ("numnodes", "nnodes", "ofnodes", "numberofnodes"),
    "gpus_per_node": ("gpuspernode", "nprocpernode", "devicespernode", "gpusnode"),
    "tp": ("tpsize", "tensorparallel", "tensorparallelism", "tensormodelparallelsize", "tensorparallelsize"),
    "pp": ("ppsize", "pipelineparallel", "pipelineparallelism", "pipelinemodelparallelsize", "pipelineparallelsize"),
    "vp": ("vpp", "vppsize", "virtualpp", "virtualpipeline", "virtualpipelineparallel", "interleave", "virtualstages"),
    "cp": ("cpsize", "contextparallel", "contextparallelism", "contextparallelsize"),
    "ep": ("epsize", "expertparallel", "expertparallelism", "expertmodelparallelsize", "expertparallelsize"),
    "etp": ("experttp", "experttensorparallelsize"),
    "dp": ("dpsize", "dataparallel", "dataparallelism", "dataparallelsize"),
    "fsdp_shard": ("fsdp", "sharding", "shardingstrategy", "zero", "zerostage", "fsdpshard", "fsdpdegree"),
    "mbs": (
        "microbatch", "microbatchsize", "localbatchsize", "perdevicebatchsize", "batchsizepergpu", "batchpergpu",
        "perdevicetrainbatchsize", "lbs", "bsgpu", "batchsizegpu", "localbs",
    ),
    "gbs": ("globalbatch", "globalbatchsize", "totalbatchsize", "batchsize", "trainbatchsize", "globalbs"),
    "ga": ("gradaccum", "gradientaccumulation", "gradaccumulation", "gradientaccumulationsteps", "accumulationsteps",
           "gas", "microbatches", "nummicrobatches"),
    "seq_len": (
        "seqlen", "sequencelength", "seqlength", "sequence", "seqlent", "seq", "contextlength", "maxseqlen",
        "maxsequencelength", "maxtargetlength", "sl", "context", "tokenspersequence",
    ),
    "precision": ("dtype", "datatype", "computedtype", "trainingprecision", "quantization", "numericformat"),
    "recompute": (
        "activationcheckpointing", "ac", "actckpt", "recomputation", "activationrecomputation", "recomputegranularity",
        "gradientcheckpointing", "activationcheckpoint", "checkpointing", "remat", "rematpolicy", "sac",
    ),
    "framework": ("software", "library", "stack", "container", "backend", "codebase", "trainer"),
    "schedule": ("pipelineschedule", "ppschedule", "pipelineparallelschedule"),
    "layout": ("parallelism", "parallel", "parallelconfig", "parallelstrategy", "strategy", "parallelization"),
    "graphs": ("cudagraph", "cudagraphs", "cudagraphimpl"),
    "notes": ("note", "comment", "comments", "remarks", "task"),
    "step_time_s": ("steptime", "steptimes", "iterationtimes", "secondsperstep", "timeperstep", "timestep"),
    "tokens_s_gpu": (
        "tokensgpus", "tokenssgpu", "tokenssecgpu", "tokenspersecpergpu", "tpsgpu", "tgs", "wpsgpu",
        "tokenssecdevice", "tokenspersecondpergpu", "throughputtokenssgpu", "tokensgpusec",
        "tokenspergpupersec", "tokenspergpupersecond",
    ),
})  # fmt: skip
#: Columns whose words are names, whatever they say.
_NAMES = frozenset({"id", "model", "gpu", "framework", "notes", "source"})
#: Columns in which a word for nothing stands where there is none.
_NONE_IN = frozenset({
    "n_gpus", "nodes", "gpus_per_node", "tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs", "gbs", "ga", "seq_len",
    "precision", "schedule",
})  # fmt: skip
_NONE = frozenset({"-", "--", "none", "n/a", "na", "no", "off"})
_COUNTED = lazy_pattern(r"([0-9]{1,9}) ?[x×*] ?(?=[a-z])|(?<=[a-z0-9])(?<!nvl36) ?[x×*] ?([0-9]{1,9})$", re.IGNORECASE)
_TIMES = lazy_pattern(r"([0-9]{1,6}) ?[x×*] ?([0-9]{1,6})(?: (?=[a-z])|$)", re.IGNORECASE)
_IN_NODES = lazy_pattern(r"([0-9]{1,6}) ?nodes?\b(?: ?\(?([0-9]{1,7}) ?gpus?)?", re.IGNORECASE)
_DEGREE = lazy_pattern(r"\b(tp|pp|vpp?|cp|ep|etp|dp|fsdp) ?[=:_-]? ?([0-9]+)", re.IGNORECASE)


def stated(row: Mapping[str, str]) -> dict[str, str]:
    """The row under the names of ``batch_rows``. Cells that say nothing are empty; counts of devices stand apart from
    their names, and degrees that one column lists in columns of their own.
    """
    made = dict.fromkeys(("model", "gpu", "n_gpus"), "")
    in_tokens = ""
    for name in HEADINGS.first(row):
        named = HEADINGS.name(name)
        text = _cell(name, named, str(row[name] or "").strip())
        if named == "gbs" and "tok" in f"{name} {text}".lower():
            in_tokens, text = text, ""
        if not made.get(named):
            made[named] = text
    _count_apart(made)
    if in_tokens and not made.get("gbs"):
        made["gbs"] = _sequences(in_tokens, made.get("seq_len", ""))
    for degree, value in _DEGREE.findall(made.get("layout", "")):
        name = {"fsdp": "fsdp_shard", "vpp": "vp"}.get(degree.lower(), degree.lower())
        made[name] = made.get(name) or value
    return made


def _cell(heading: str, named: str, text: str) -> str:
    """What it says; nothing where that is elsewhere."""
    if named not in _NAMES and (is_unsaid(text) or (named in _NONE_IN and text.lower() in _NONE)):
        return ""
    return f"zero{text}" if "zero" in heading.lower() and text in ("0", "1", "2", "3") else text


def _sequences(tokens: str, length: str) -> str:
    """A batch in tokens as sequences of ``length``; as it is where that is none."""
    try:
        return f"{float(number(tokens)) / float(number(length)):.0f}"
    except (ValueError, ZeroDivisionError):
        return tokens


def _count_apart(made: dict[str, str]) -> None:
    """``8x H100`` and ``H100 x8`` as a device and a number, ``4x8`` devices as their product, ``8 nodes`` as such."""
    product, nodes = _TIMES.match(made["n_gpus"]), _IN_NODES.match(made["n_gpus"])
    if product:
        device = made["n_gpus"][product.end() :]
        made["n_gpus"] = f"{int(product[1]) * int(product[2])}{'x' if device else ''}{device}"
    elif nodes:
        made["n_gpus"], made["nodes"] = nodes[2] or "", nodes[1]
    for name in ("n_gpus", "gpu"):
        counted = _COUNTED.search(made[name])
        if counted:
            device, count = _COUNTED.sub("", made[name]), counted[1] or counted[2]
            made["gpu"] = device if name == "gpu" else made["gpu"] or device
            made["n_gpus"] = count if name == "n_gpus" else made["n_gpus"] or count
