"""Reads profiler traces: where the time goes, and how far each op is from the limit of the hardware.

    import tracelens as tl; r = tl.report("trace.json.gz")  # start here; then r["ops"], r.show()

look     report, load       the report of a trace; a trace read once, for several reports
         compare            what changed between two traces or reports; collectives: the ranks of a job
record   profile, handler   record some steps of a PyTorch program as a trace
predict  estimate           the time of a kernel or a collective on a device
         project, search    the time of a training step on a cluster; the best splits of a model
         serve              latency and throughput of an inference server
         route, layer       the exchange of tokens between experts; one layer by published rules
extend   traced_as, traced_as_pattern, recorded_as, KernelPattern: a perf model for your op
         PerfModel, CategoryOf, OpSignature, DType: what a perf model is made of
         GEMM, GroupedGEMM, SDPA, Conv, EPComm, Elementwise, Normalization, Reduce, Softmax: models
         finding, Advice, Candidate, sheet, backend: your findings, sheets and estimates
types    Trace, HardwareSpec, TracelensError, SignatureError; tracelens.integrations: W&B, MLflow, Jupyter ...
help(tl.compare) explains one name. Names load when first used: the import loads no NumPy or pandas.
"""

import sys

# ``python -m tracelens`` puts the current folder first on the path. That folder may hold foreign traces, so whatever is
# imported from here on, even ``__future__``, must not come from it.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].endswith("tracelens") and not sys.flags.safe_path:
    del sys.path[0]

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect

    from tracelens.analysis.findings.rule import Advice as Advice
    from tracelens.analysis.findings.rule import Candidate as Candidate
    from tracelens.analysis.findings.rule import finding as finding
    from tracelens.analysis.loaded_trace import Trace as Trace
    from tracelens.analysis.loaded_trace import load as load
    from tracelens.backends.base import backend as backend
    from tracelens.comparison.compare import compare as compare
    from tracelens.errors import SignatureError as SignatureError
    from tracelens.errors import TracelensError as TracelensError
    from tracelens.hardware import HardwareSpec as HardwareSpec
    from tracelens.laboratory.paper_rules import layer as layer
    from tracelens.perf_models import GEMM as GEMM
    from tracelens.perf_models import SDPA as SDPA
    from tracelens.perf_models import Conv as Conv
    from tracelens.perf_models import Elementwise as Elementwise
    from tracelens.perf_models import EPComm as EPComm
    from tracelens.perf_models import GroupedGEMM as GroupedGEMM
    from tracelens.perf_models import Normalization as Normalization
    from tracelens.perf_models import Reduce as Reduce
    from tracelens.perf_models import Softmax as Softmax
    from tracelens.perf_models.base import CategoryOf as CategoryOf
    from tracelens.perf_models.base import PerfModel as PerfModel
    from tracelens.perf_models.base import recorded_as as recorded_as
    from tracelens.perf_models.base import traced_as as traced_as
    from tracelens.perf_models.base import traced_as_pattern as traced_as_pattern
    from tracelens.perf_models.kernels import KernelPattern as KernelPattern
    from tracelens.predict.estimation.estimate import estimate as estimate
    from tracelens.predict.projection.project import project as project
    from tracelens.predict.projection.search.request import search as search
    from tracelens.predict.routing.route import route as route
    from tracelens.predict.serving.experiment import serve as serve
    from tracelens.report import report as report
    from tracelens.report.rank_report import collectives as collectives
    from tracelens.report.recorder import handler as handler
    from tracelens.report.recorder import profile as profile
    from tracelens.schema import sheet as sheet
    from tracelens.types.dtypes import DType as DType
    from tracelens.types.signature import OpSignature as OpSignature

_NAMES_OF = {
    "analysis.findings.rule": ("Advice", "Candidate", "finding"),
    "analysis.loaded_trace": ("Trace", "load"),
    "backends.base": ("backend",),
    "comparison.compare": ("compare",),
    "errors": ("SignatureError", "TracelensError"),
    "hardware": ("HardwareSpec",),
    "laboratory.paper_rules": ("layer",),
    "perf_models": (
        "Conv", "EPComm", "Elementwise", "GEMM", "GroupedGEMM", "Normalization", "Reduce", "SDPA", "Softmax"
    ),
    "perf_models.base": ("CategoryOf", "PerfModel", "recorded_as", "traced_as", "traced_as_pattern"),
    "perf_models.kernels": ("KernelPattern",),
    "predict.estimation.estimate": ("estimate",),
    "predict.projection.project": ("project",),
    "predict.projection.search.request": ("search",),
    "predict.routing.route": ("route",),
    "predict.serving.experiment": ("serve",),
    "report": ("report",),
    "report.rank_report": ("collectives",),
    "report.recorder": ("handler", "profile"),
    "schema": ("sheet",),
    "types.dtypes": ("DType",),
    "types.signature": ("OpSignature",),
}  # fmt: skip
_MODULE_OF = {name: f"tracelens.{module}" for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("tracelens-perf")
        except PackageNotFoundError:  # a checkout on the path, not installed
            return "0+source"
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tracelens' has no attribute {name!r}")
    module = importlib.import_module(_MODULE_OF[name])
    if name == "report":
        return module  # callable, see below
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_MODULE_OF, "__version__", "__doc__", "__file__", "__name__", "__path__"})


class _ReportRoom(ModuleType):
    # ``tracelens.report`` once it is imported: the room, and callable as its function of the same name.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.report(*args, **kwargs)

    #: Of ``tl.report?``: that of the function.
    __doc__ = property(lambda self: self.report.__doc__)

    @property
    def __signature__(self) -> "inspect.Signature":
        import inspect

        return inspect.signature(self.report)


class _Package(ModuleType):
    """``tl.report(trace)`` is a function and ``tracelens.report`` a room of the house.

    Importing the room anywhere binds it to that name here, so it becomes callable at that moment.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "report" and type(value) is ModuleType:
            value.__class__ = _ReportRoom
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
