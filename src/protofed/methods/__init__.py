"""The registry: the only place that knows methods by name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple, get_type_hints

from protofed.errors import UserError, unknown
from protofed.internal.plugins import is_code, load_code, name_of
from protofed.internal.schema import check_type
from protofed.methods.base import Method

METHODS = {
    "local": "local:Local",
    "fedavg": "fedavg:FedAvg",
    "fedprox": "fedprox:FedProx",
    "fedproto": "fedproto:FedProto",
    "mp-fedcl": "mp_fedcl:MPFedCL",
    "sp-fedcl": "sp_fedcl:SPFedCL",
    "dp-fedcl": "dp_fedcl:DPFedCL",
    "fedplcc": "fedplcc:FedPLCC",
    "fedsc": "fedsc:FedSC",
    "fedper": "fedper:FedPer",
    "fedrep": "fedrep:FedRep",
    "fesem": "fesem:FeSEM",
    "moon": "moon:Moon",
    "fedproc": "fedproc:FedProc",
    "fedpcl": "fedpcl:FedPCL",
    "fpl": "fpl:FPL",
    "fedplvm": "fedplvm:FedPLVM",
    "fccl-plus": "fccl_plus:FCCLPlus",
    "fedntd": "fedntd:FedNTD",
    "fednh": "fednh:FedNH",
    "fedrcl": "fedrcl:FedRCL",
    "fedcda": "fedcda:FedCDA",
    "fedbn": "fedbn:FedBN",
    "lg-fedavg": "lg_fedavg:LGFedAvg",
    "fedbabu": "fedbabu:FedBABU",
    "fedlc": "fedlc:FedLC",
    "fedrod": "fedrod:FedRoD",
    "fedetf": "fedetf:FedETF",
    "fednova": "fednova:FedNova",
    "scaffold": "scaffold:Scaffold",
    "feddyn": "feddyn:FedDyn",
    "ditto": "ditto:Ditto",
    "fedheal": "fedheal:FedHEAL",
    "fedgh": "fedgh:FedGH",
    "fedtgp": "fedtgp:FedTGP",
    "fedncm": "fedncm:FedNCM",
    "fed3r": "fed3r:Fed3R",
    "fedcof": "fedcof:FedCOF",
    "fedpac": "fedpac:FedPAC",
    "ccvr": "ccvr:CCVR",
}

ALONE = "local"
"""The method of clients that train by themselves, for whoever needs training without a federation."""


CALIBRATES = "ccvr"
"""The method whose server calibrates a head, for whoever does so after a run."""


def method_names() -> list[str]:
    """Every method that can be named: ours, then those of installed packages (entry point group protofed.methods)."""
    return [*METHODS, *sorted(point.name for point in entry_points(group="protofed.methods"))]


def method_class(spec: str) -> type[Method]:
    """The class behind a name, an entry point, `path/to/file.py:ClassName` or `package.module:ClassName`."""
    if spec in METHODS:
        module, _, name = METHODS[spec].partition(":")
        found: Any = getattr(importlib.import_module(f"protofed.methods.{module}"), name)
    elif is_code(spec):
        found = load_code("--method", spec)
    elif points := entry_points(group="protofed.methods", name=spec):
        found = next(iter(points)).load()
    else:
        raise unknown("--method", spec, method_names(), see="protofed methods")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError("--method", spec, "it must name a class that extends protofed.methods.base.Method")
    if "__dataclass_fields__" not in vars(found):  # inherited ones would hide the class's own parameters
        raise UserError("--method", spec, "it lacks the decorator @dataclass(frozen=True)")
    if inspect.isabstract(found) or not hasattr(found, "name"):
        raise UserError("--method", spec, "it needs a `name` and a `loss`")
    return found


class Parameter(NamedTuple):
    """What a user may set of a method: the type, the default, and what it is."""

    kind: Any
    default: Any
    help: str


def parameters(cls: type[Method]) -> dict[str, Parameter]:
    """The settable parameters of a method, by name."""
    hints = get_type_hints(cls)
    return {
        item.name: Parameter(hints[item.name], item.default, item.metadata.get("help", ""))
        for item in dataclasses.fields(cls)
        if item.init
    }


def build_method(spec: str, values: Mapping[str, Any]) -> Method:
    """A method with its parameters, each of its declared type and within its bounds."""
    cls = method_class(spec)
    known = parameters(cls)
    for name in values:
        if name not in known:
            raise unknown(f"--set with --method {spec}", name, known)
    return cls(**{name: check_type(f"--set {name}", value, known[name].kind) for name, value in values.items()})


def named_method(method: str | Method | type[Method]) -> tuple[str, dict[str, Any]]:
    """A method as an experiment has it: a name that `method_class` knows, and the parameters that are not defaults."""
    if isinstance(method, str):
        return method, {}
    cls = method if isinstance(method, type) else type(method)
    if not issubclass(cls, Method):
        raise UserError("method", method, "give a name, or a class that extends protofed.methods.base.Method")
    label = getattr(cls, "name", cls.__name__)
    spec = label if label in METHODS and method_class(label) is cls else name_of(cls, label)
    known = parameters(method_class(spec)).items() if isinstance(method, Method) else ()
    return spec, {name: value for name, one in known if (value := getattr(method, name)) != one.default}


def describe(name: str) -> dict[str, Any]:
    """What `protofed methods` says of a method."""
    cls = method_class(name)
    known = parameters(cls).items()
    about = {item: getattr(cls, item) for item in ("paper", "link", "up", "down", "score")}
    told = {"parameters": {item: one.default for item, one in known}, "help": {item: one.help for item, one in known}}
    return {"name": name, "description": (cls.__doc__ or "").split("\n")[0], **about, **told}
