"""How published tables head their columns, and cells that say nothing: rows under the names that a projection reads."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracelens.files.published_cells import Headings, is_unsaid
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
#: Columns of numbers, and what stands in them where there is none.
_NUMBERS = frozenset(
    {"n_gpus", "nodes", "gpus_per_node", "tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs", "gbs", "ga", "seq_len"}
)
_NONE = frozenset({"-", "--", "none", "n/a", "na", "no", "off"})
_COUNTED = lazy_pattern(r"([0-9]{1,9}) ?[x×*] ?(?=[a-z])", re.IGNORECASE)
_DEGREE = lazy_pattern(r"\b(tp|pp|vpp?|cp|ep|etp|dp|fsdp) ?[=:_-]? ?([0-9]+)", re.IGNORECASE)


def stated(row: Mapping[str, str]) -> dict[str, str]:
    """The row under the names of ``batch_rows``. Cells that say nothing are empty; counts of devices stand apart from
    their names, and degrees that one column lists in columns of their own.
    """
    made = dict.fromkeys(("model", "gpu", "n_gpus"), "")
    for name in HEADINGS.first(row):
        text = str(row[name] or "").strip()
        named = HEADINGS.name(name)
        if named not in _NAMES and (is_unsaid(text) or (named in _NUMBERS and text.lower() in _NONE)):
            text = ""
        if not made.get(named):
            made[named] = text
    _count_apart(made)
    for degree, value in _DEGREE.findall(made.get("layout", "")):
        name = {"fsdp": "fsdp_shard", "vpp": "vp"}.get(degree.lower(), degree.lower())
        made[name] = made.get(name) or value
    return made


def _count_apart(made: dict[str, str]) -> None:
    """``8x H100`` as a device and a number."""
    for name in ("n_gpus", "gpu"):
        counted = _COUNTED.match(made[name])
        if counted:
            device, count = made[name][counted.end() :], counted[1]
            made["gpu"] = device if name == "gpu" else made["gpu"] or device
            made["n_gpus"] = count if name == "n_gpus" else made["n_gpus"] or count
