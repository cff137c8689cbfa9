"""A trace to hand on: without the names and paths of who recorded it, or cut to some of its steps, ranks or
categories.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import numpy as np

from tracelens.analysis.attribution.host_time import telling_part
from tracelens.analysis.attribution.steps import select_steps, telling_word
from tracelens.analysis.attribution.window import Recording, Window
from tracelens.analysis.intervals import Bools
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.extensions import bundled_extensions
from tracelens.perf_models.kernels import classify
from tracelens.trace.rewriting import microseconds, rewrite
from tracelens.trace.table import DEVICE_KINDS, HOST_KINDS, Kind, TraceTable, kind_of_category
from tracelens.trace.tree import MODULE_PREFIX
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

#: Kinds of names -> names of them that everybody's traces have.
PUBLIC_OPS = re.compile(
    r"(?:aten|c10d|c10d_functional|_c10d_functional|prim|nccl|gloo|mpi|ucc|torch|autograd|symm_mem|quantized|_quantized"
    r"|torchao|_C|_C_cache_ops|_moe_C|vllm|sglang|aiter|fbgemm|xformers|flash_attn|flash_attn_3|flashinfer|mkldnn"
    r"|bitsandbytes|mslk|inductor|rocm|cudnn|transformer_engine|tex)::[\w.:]+(?: \(.*\))?"
    r"|(?:nccl|gloo|mpi|ucc):\w+|(?:All2All|AllGather|ReduceScatter|VariableBatchAll2All)\w+|\w*[A-Za-z]Backward\d+"
    r"|(?:Unsafe)?(?:SplitWithSizes|Split|Chunk|TensorSplit|Unbind)Backward|record_param_comms|triton_(?:poi|per|red|tem|for|mm|bmm|unk|spl|fused)\w*|triton__\w+"
    r"|Torch-Compiled Region(?:: [\d/]+)?|CompiledFunction(?:Backward)?|TorchDynamo Cache Lookup|CUDAGraph::replay"
    r"|\[memory\]|PyTorch Profiler \(\d+\)|(?:enumerate\(DataLoader\)#)?_\w*DataLoaderIter\.__next__"
    r"|DistributedDataParallel\.forward|FullyShardedDataParallel\.\w+|Optimizer\.(?:step|zero_grad)#\w+\.\w+"
    r"|Memcpy [\w >()-]+|Memset[\w ()]*|(?:Context|Event|Stream|Device) Sync(?:hronize)?|Stream Wait Event"
    r"|Activity Buffer Request|Lazy Function Loading|Buffer Flush|Instrumentation|Resource"
    r"|Runtime Triggered Module Loading|Command Buffer Full|Iteration Start: PyTorch Profiler|Record Window End"
    r"|ac2g|fwdbwd|Trace|INVALID"
)  # fmt: skip
PUBLIC_CALLS = re.compile(r"(?:cuda|hip|cu|hsa|nccl|rccl|roctx|nvtx|xpu|ur)[A-Z]\w*|INVALID")
#: What serving engines annotate their steps with: sizes and counts.
PUBLIC_ENGINE_STEPS = re.compile(
    r"(?:execute|capture)_[\w()]+|(?:step|prefill|decode)\[[\w =./,\[\]()]*\]|ProfilerStep(?:\*|#\d+)|## (?:forward"
    r"|backward|optimizer|zero_grad|data_load|decoder|encoder) ##"
)  # fmt: skip
PUBLIC_KERNELS = re.compile(
    r"(?:void )?(?:at|c10|cub|thrust|cudnn|cublas|cublasLt|cutlass|cute|flash|pytorch_flash|fmha\w*|vllm|sgl_\w+|aiter"
    r"|ck|ck_tile|rocprim|fbgemm_gpu|deep_ep|deep_gemm|moe|tensorrt_llm|trtllm|flashinfer|apex|transformer_engine"
    r"|cask_\w+|cutlass_\w+|\(anonymous namespace\)|at_cuda_detail)::.*"
    r"|(?:void )?(?:nccl|rccl|ncclDev|Cijk_|igemm_|miopen|MIOpen|nvjet|ampere_|volta_|turing_|hopper_|sm\d+_|cudnn_"
    r"|cutlass_|gemm|gemv|sgemm|hgemm|splitK|dot_kernel|reduce_1Block|fmha_|flash_|attn_|bmm_|triton_|cunn_|layer_norm|rms_norm"
    r"|multi_tensor_apply|elementwise|vectorized|Memcpy|Memset|__amd_rocclr_).*"
)  # fmt: skip
#: A Python frame of PyTorch itself, from its path on; the built-in methods of built-in types.
PUBLIC_FRAMES = re.compile(
    r"(?:[^/]*/){0,40}?(?P<public>torch/[\w/.-]+\.py\(\d+\): [\w.<>]+)"
    r"|(?P<builtin><built-in method \w+ of (?:Tensor|type|str|list|dict|tuple|set|int|float|bytes) object[^<>]*>"
    r"|<built-in (?:method|function) collect\b[^<>]*>)"
)  # fmt: skip
#: Modules of torch.nn.
PUBLIC_MODULES = frozenset({
    "Linear", "Bilinear", "Identity", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "ConvTranspose3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "GroupNorm", "InstanceNorm1d",
    "InstanceNorm2d", "LayerNorm", "RMSNorm", "LocalResponseNorm", "Embedding", "EmbeddingBag", "Dropout", "Dropout1d",
    "Dropout2d", "ReLU", "ReLU6", "GELU", "SiLU", "ELU", "Tanh", "Sigmoid", "Softmax", "LogSoftmax", "Hardswish",
    "Hardsigmoid", "LeakyReLU", "PReLU", "Mish", "MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d",
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "Sequential", "ModuleList", "ModuleDict",
    "MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerEncoderLayer", "TransformerDecoder",
    "TransformerDecoderLayer", "LSTM", "GRU", "RNN", "Flatten", "Unflatten", "Upsample", "CrossEntropyLoss", "MSELoss",
    "NLLLoss", "L1Loss", "BCELoss", "BCEWithLogitsLoss", "KLDivLoss", "DataParallel", "DistributedDataParallel",
    "FullyShardedDataParallel", "PixelShuffle", "ZeroPad2d", "ConstantPad2d", "ReflectionPad2d",
})  # fmt: skip
#: What frameworks call process groups.
PUBLIC_GROUPS = re.compile(
    r"\d*|default_pg|undefined|(?:data|tensor|pipeline|expert|context|model|sequence|embedding|position|parallel|group|pg"
    r"|dp|tp|pp|ep|cp|sp|etp|edp|fsdp|ddp|hsdp|mesh|world|replicate|shard|with|and|intra|inter|node|partial|amax|_)+"
)


_ENGINE = "autograd::engine::evaluate_function: "
_NUMBER = re.compile(r"(?<!\d)(\d+)(\D*)\Z")
_INSTANCE = re.compile(r"_(\d+)\Z")
_FRAME = re.compile(r"(?P<file>[^()]*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
#: Words by which phases are told apart stay.
_PHASES = re.compile(r"backward|bwd|forward|fwd|\([FBW]\)|w_?grad", re.IGNORECASE)
#: Keys of an event that hold neither names nor arguments.
_KEPT_KEYS = ("ph", "ts", "dur", "id", "bp", "s")
#: Arguments that hold numbers, or texts that PyTorch chose.
_KEPT_ARGUMENTS = frozenset(
    str.split(
        "External id|external id|Record function id|Ev Idx|Sequence number|Fwd thread id|Input Dims|Input dims|"
        "Input Strides|Output dims|Python id|Python parent id|Python module id|correlation|cbid|cid|stream|"
        "device|context|queued|grid|block|registers per thread|shared memory|warps per SM|blocks per SM|"
        "est. achieved occupancy %|bytes|memory bandwidth (GB/s)|kind|size|cuda_sync_kind|wait_on_stream|"
        "wait_on_cuda_event_id|wait_on_cuda_event_record_corr_id|Collective name|dtype|In msg nelems|"
        "Out msg nelems|In split size|Out split size|Group size|Process Group Ranks|Process Group ID|"
        "Global rank start|Global rank stride|Rank|Src Rank|Dst Rank|Seq|src|dst|kernel_backend|kernel_flop|"
        "kernel_num_gb|num_warps|num_stages|graph id|graph node id|Device|Op count|flops|finished|Bytes|"
        "Total Allocated|Total Reserved|Device Type|Device Id|Addr|sort_index|Profiler Event Index|scope|"
        "priority",
        "|",
    )
)
_KEPT_METADATA = frozenset(
    (
        "schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds", "record_shapes", "with_stack",
        "profile_memory", "with_flops", "with_modules", "cupti_version", "cuda_runtime_version", "cuda_driver_version",
        "roctracer_version", "hip_runtime_version", "hip_driver_version", "pytorch_version", "torch_version",
    )
)  # fmt: skip
_TYPES = frozenset(("", "Scalar", "ScalarList", "TensorList", "GenericList", "Device", "Layout", "Generator", "Dict"))
# A literal: numbers, truth values and lists of them; a word as schemas have it ("tanh", "mean").
_LITERAL = re.compile(
    r"[\d\s.,\[\]()eE+-]*|(?:\[?(?:True|False|None|inf|-inf|nan)[,\s\]]*)+|[a-z]{1,12}|(?:cuda|cpu)(?::\d+)?"
)
_PROCESS = re.compile(r"(?:python|CPU|GPU|Spans|Traces)?(?: ?\d+)?|rank \d+(?: · (?:CPU|GPU \d+))?|Spans|Traces")
_THREAD = re.compile(r"(?:stream|thread) +\d+|rank \d+.*")


def anonymize(trace: Trace, path: str | PathLike[str]) -> int:
    """Writes the trace with placeholders for all names that are not public; returns how many.

    Paths, hosts, users, stacks and unknown arguments and metadata are left out. Times, sizes, shapes, identifiers and
    everything else that figures are made of stay.
    """
    names, table = Names(), trace.table

    def edit(row: int, event: dict[str, Any]) -> dict[str, Any]:
        kind = Kind(int(table.kind[row])) if row >= 0 else Kind.OTHER
        made: dict[str, Any] = {key: event[key] for key in _KEPT_KEYS if key in event}
        if row >= 0:
            made |= {"ts": microseconds(int(table.start_ns[row])), "dur": microseconds(int(table.duration_ns[row]))}
        category = event.get("cat")
        if isinstance(category, str):
            known = kind_of_category(category) is not Kind.OTHER or re.fullmatch(r"[a-z0-9_]{1,24}", category)
            made["cat"] = category if known else "other"
        made |= {key: names.identifier(event[key]) for key in ("pid", "tid") if key in event}
        name = event.get("name")
        if event.get("ph") == "M":
            return made | {"name": str(name), "args": names.of_metadata(event.get("args"))}
        if isinstance(name, str):
            made["name"] = names.name(name, kind)
        if isinstance(event.get("args"), dict):
            made["args"] = names.arguments(event["args"])
        return made

    rewrite(table, path, edit, names.metadata(table.metadata))
    return names.count


class Names:
    """Placeholders by name, the same for the same name: ``op1``, ``kernel2``, ``range1 12``, ``file3.py(14): f``."""

    def __init__(self) -> None:
        self._catalog = Catalog(bundled_extensions())
        known = (*self._catalog.bindings, *self._catalog.categories)
        self._known = {name.removeprefix("aten::").replace("_", "").casefold() for name in known}
        self._made: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self._names: dict[tuple[str, Kind], str] = {}

    @property
    def count(self) -> int:
        """How many placeholders there are."""
        return len(self._made)

    def name(self, name: str, kind: Kind) -> str:
        """The name itself where it is public."""
        found = self._names.get((name, kind))
        if found is None:
            found = self._names[name, kind] = self._rules.get(kind, Names._op)(self, name)
        return found

    def placeholder(self, word: str, text: str) -> str:
        """``word`` and a number that stands for ``text``."""
        made = self._made.get((word, text))
        if made is None:
            self._counts[word] += 1
            made = self._made[word, text] = f"{word}{self._counts[word]}"
        return made

    def identifier(self, value: Any) -> Any:
        """A process or thread: numbers stay."""
        return value if not isinstance(value, str) or _PROCESS.fullmatch(value) else self.placeholder("process", value)

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of an event."""
        made = {key: value for key, value in args.items() if key in _KEPT_ARGUMENTS}
        if "Input type" in args:
            made["Input type"] = _each(
                args["Input type"], lambda v: v if v in _TYPES or DType.parse(v) is not None else "unknown"
            )
        if "Concrete Inputs" in args:
            made["Concrete Inputs"] = _each(args["Concrete Inputs"], lambda v: v if _LITERAL.fullmatch(v) else "")
        for key in ("Process Group Name", "Process Group Description"):
            if key in args:
                made[key] = self.group(args[key])
        if isinstance(args.get("kernel"), str):
            made["kernel"] = self.name(args["kernel"], Kind.KERNEL)
        return made

    def of_metadata(self, args: Any) -> dict[str, Any]:
        """What names or sorts a process or thread."""
        args = args if isinstance(args, dict) else {}
        made = {key: args[key] for key in ("sort_index",) if key in args}
        for key in ("name", "labels"):
            text = args.get(key)
            if isinstance(text, str):
                public = _PROCESS.fullmatch(text) or _THREAD.match(text)
                made[key] = public[0] if public else self.placeholder("process", text)
        return made

    def group(self, name: Any) -> Any:
        """A process group's name: numbers and the words that say what it is for stay."""
        known = not isinstance(name, str) or PUBLIC_GROUPS.fullmatch(name)
        return name if known else self.placeholder("group", name)

    def metadata(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What stands round the events."""
        made = {key: value for key, value in values.items() if key in _KEPT_METADATA}
        info = values.get("distributedInfo")
        if isinstance(info, dict):
            kept = {
                key: info[key] for key in ("backend", "rank", "world_size", "pg_count", "nccl_version") if key in info
            }
            groups = info.get("pg_config")
            if isinstance(groups, list):
                kept["pg_config"] = [self._group_entry(entry) for entry in groups if isinstance(entry, dict)]
            made["distributedInfo"] = kept
        return made

    def _group_entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        made = {key: entry[key] for key in ("pg_size", "ranks", "group_count", "group_size") if key in entry}
        return made | {key: self.group(entry[key]) for key in ("pg_name", "pg_desc") if key in entry}

    def _op(self, name: str) -> str:
        if name.startswith(_ENGINE):
            return _ENGINE + self._op(name.removeprefix(_ENGINE))
        known = self._catalog.category_of(name) is not None or name in self._catalog.bindings or self._is_gradient(name)
        if known or PUBLIC_OPS.fullmatch(name) or PUBLIC_ENGINE_STEPS.fullmatch(name):
            return name
        return self.placeholder("op", name) + _phase(name)

    def _is_gradient(self, name: str) -> bool:
        """Whether an autograd node of PyTorch 1.x (``MaxPool2DWithIndicesBackward``) is that of a known op."""
        return name.endswith("Backward") and name.removesuffix("Backward").casefold() in self._known

    def _range(self, name: str) -> str:
        if PUBLIC_OPS.fullmatch(name) or PUBLIC_ENGINE_STEPS.fullmatch(name):
            return name
        number = _NUMBER.search(name)
        stem = name if number is None else f"{name[: number.start()]}#{number[2]}"
        word = "" if number is None else telling_word(name[: number.start()])
        made = self.placeholder("range", stem) + _phase(name) + (f"_{word}" if word else "")
        made += "" if number is None else f" {number[1]}"
        told = telling_part(name)
        spelled = (made, f"{told} {made}", f"{made} {told}", made + told)
        return next((text for text in spelled if telling_part(text) == told), made)

    def _kernel(self, name: str) -> str:
        if PUBLIC_KERNELS.fullmatch(name) or PUBLIC_OPS.fullmatch(name):
            return name
        made = self.placeholder("kernel", name)
        (pattern,) = classify([name], self._catalog.kernel_patterns)
        found = None if pattern is None else re.search(pattern.regex, name)
        telling = made if found is None else f"{found[0]} {made}"
        return telling if classify([telling], self._catalog.kernel_patterns) == [pattern] else made

    def _frame(self, name: str) -> str:
        if name.startswith(MODULE_PREFIX):
            instance = _INSTANCE.search(name)
            module = name.removeprefix(MODULE_PREFIX)[: None if instance is None else -len(instance[0])]
            shown = module if module in PUBLIC_MODULES else self.placeholder("Module", module)
            return MODULE_PREFIX + shown + ("" if instance is None else instance[0])
        public = PUBLIC_FRAMES.fullmatch(name)
        if public is not None:
            return public["public"] or public["builtin"]
        frame = _FRAME.fullmatch(name)
        if frame is None:
            return self.placeholder("function", name)
        file, function = self.placeholder("file", frame["file"]), self.placeholder("function", frame["function"])
        return f"{file}.py({frame['line']}): {function}"

    def _call(self, name: str) -> str:
        return name if PUBLIC_CALLS.fullmatch(name) else self.placeholder("call", name)

    _rules: Mapping[Kind, Callable[[Names, str], str]] = {
        Kind.RUNTIME: _call,
        Kind.DRIVER: _call,
        Kind.KERNEL: _kernel,
        Kind.USER_ANNOTATION: _range,
        Kind.GPU_USER_ANNOTATION: _range,
        Kind.PYTHON_FUNCTION: _frame,
    }


def _phase(name: str) -> str:
    found = _PHASES.search(name)
    return "" if found is None else f"_{found[0] if found[0].startswith('(') else found[0].lower()}"


def _each(value: Any, made: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_each(part, made) for part in value]
    return made(value) if isinstance(value, str) else value


_SLICES, _FLOWS = ("X", "B", "E"), ("s", "t", "f")
_ALWAYS = -math.inf, math.inf


class Cut(Record, frozen=True, kw_only=True):
    """What stays. ``steps``: ``3``, ``3-5`` or ``steady``; ``rank``: of a merged file; ``categories`` as recorded."""

    steps: str | None = None
    rank: int | None = None
    categories: tuple[str, ...] = ()


def slim(trace: Trace, path: str | PathLike[str], cut: Cut) -> tuple[int, int]:
    """Writes what stays to ``path``; returns (events written, events of the file).

    Of steps: what runs on the host in them, what they launched, and what the device still did of earlier work as they
    began: as if recording had begun there. UsageError for steps or a category that the trace does not have.
    """
    recording = Recording.of(trace, AnalysisOptions(rank=cut.rank, cpu=True))
    table = recording.recorded.table
    kept = np.ones(len(table), bool)
    window: tuple[int, int] | None = None
    if cut.steps is not None:
        kept, window = _of_steps(recording, cut.steps)
    if cut.categories:
        unknown = set(cut.categories) - set(table.categories)
        if unknown:
            raise UsageError.unknown("category", min(unknown), table.categories)
        kept &= np.isin(table.category, [i for i, name in enumerate(table.categories) if name in cut.categories])
    if not kept.any():
        raise NothingToAnalyzeError(f"{table.source}: no event matches everything asked for; give fewer conditions")
    others = _Others(table, kept, None if cut.categories else window or _ALWAYS)

    def edit(row: int, event: dict[str, Any]) -> dict[str, Any] | None:
        return others.edit(event) if row < 0 else event if kept[row] else None

    return rewrite(table, path, edit), table.events_total


class _Others:
    """Which events stay that are no rows: names of processes that stay, and what happens on their lanes meanwhile."""

    def __init__(self, table: TraceTable, kept: Bools, window: tuple[float, float] | None) -> None:
        """``window``: None leaves out all but names."""
        self._window = window
        self._lanes = {table.lanes[lane] for lane in np.unique(table.lane[kept]).tolist()}
        self._pids = {pid for pid, _ in self._lanes}
        self._left_out = set(table.correlation[~kept].tolist()) - set(table.correlation[kept].tolist())

    def edit(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The event, or None."""
        phase = event.get("ph")
        try:
            if phase == "M":
                return event if event.get("pid") in self._pids else None
            here = (event.get("pid"), event.get("tid")) in self._lanes
            if phase in _SLICES or not here or (phase in _FLOWS and event.get("id") in self._left_out):
                return None
        except TypeError:  # a list or an object where a number belongs
            return None
        time, window = event.get("ts"), self._window
        inside = window is not None and isinstance(time, int | float) and window[0] <= time * 1000 < window[1]
        return event if inside else None


def _of_steps(recording: Recording, steps: str) -> tuple[Bools, tuple[int, int]]:
    """(rows that stay, from when to when)."""
    table: TraceTable = recording.recorded.table
    window = Window.of_file(recording, AnalysisOptions())
    window = window.within(tuple(select_steps(steps, window.times, window.steady)))
    if not len(window.activity):
        raise NothingToAnalyzeError(f"{table.source}: steps {steps} launched no GPU work; choose others")
    chosen = [window.times.steps[i] for i in window.selected]
    following = [s.start_ns for s in window.times.steps if s.start_ns >= chosen[-1].end_ns]
    span = chosen[0].start_ns, min(following, default=chosen[-1].end_ns)
    start, end = table.start_ns, table.start_ns + table.duration_ns
    kept = (start < span[1]) & (end > span[0])
    others = {(s.start_ns, s.end_ns) for s in window.times.steps} - {(s.start_ns, s.end_ns) for s in chosen}
    annotations = np.flatnonzero(kept & (table.kind == Kind.USER_ANNOTATION)).tolist()
    kept[[row for row in annotations if (int(start[row]), int(end[row])) in others]] = False
    launched = np.zeros(len(table), bool)
    launched[window.activity.rows[window.activity.rows < len(table)]] = True
    last = max(span[1], int(end[launched].max(initial=span[1])))
    # The device may be far behind: what was launched earlier runs as the steps begin, what was launched later does not
    device = np.flatnonzero(table.is_of(DEVICE_KINDS))
    launch = recording.recorded.tree.launch[device]
    earlier = (launch < 0) | (start[launch] < span[0])
    kept[device] = launched[device] | (earlier & (end[device] > span[0]) & (start[device] < last))
    other = ~np.isin(table.kind, (*HOST_KINDS, *DEVICE_KINDS))
    kept[other] = (start[other] < last) & (end[other] > span[0])
    return kept, (span[0], last)
