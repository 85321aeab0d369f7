"""The CustomResourceDefinitions: names, scope, columns, status subresource, around the generated schemas."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from kvgrove_crds.base import GROUP, VERSION
from kvgrove_crds.cache_node import CacheNode
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.schema import structural_schema


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``; with priority 1 only of ``kubectl get -o wide``."""

    name: str
    path: str
    description: str
    type: Literal["string", "integer", "date"] = "string"
    priority: int = 0

    def as_yaml(self) -> dict[str, Any]:
        column = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description}
        return column | ({"priority": self.priority} if self.priority else {})


@dataclass(frozen=True, slots=True)
class Definition:
    """One kind as the API server knows it."""

    model: type[BaseModel]
    plural: str
    short_name: str
    scope: Literal["Cluster", "Namespaced"]
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.plural}.{GROUP}"

    def as_yaml(self) -> dict[str, Any]:
        """The object to apply."""
        kind = self.model.__name__
        version = {
            "name": VERSION,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": structural_schema(self.model)},
            "subresources": {"status": {}},
            "additionalPrinterColumns": [column.as_yaml() for column in self.columns],
        }
        if self.selectable:
            version["selectableFields"] = [{"jsonPath": path} for path in self.selectable]
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name, "labels": {"app.kubernetes.io/part-of": "kvgrove"}},
            "spec": {
                "group": GROUP,
                "names": {
                    "kind": kind,
                    "listKind": f"{kind}List",
                    "plural": self.plural,
                    "singular": kind.lower(),
                    "shortNames": [self.short_name],
                    "categories": ["kvgrove"],
                },
                "scope": self.scope,
                "versions": [version],
            },
        }


_READY = Column("Ready", '.status.conditions[?(@.type=="Ready")].status', "Whether it serves as declared")
_REASON = Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', "Why", priority=1)
_PHASE = Column("Phase", ".status.phase", "Where it stands")
_AGE = Column("Age", ".metadata.creationTimestamp", "Time since creation", type="date")

DEFINITIONS = (
    Definition(
        model=ModelVersion,
        plural="modelversions",
        short_name="mv",
        scope="Cluster",
        columns=(
            _READY,
            _PHASE,
            Column("Generation", ".status.summary.generation", "First digits of the generation"),
            Column("Nodes", ".status.summary.nodes", "Ready and desired nodes"),
            Column("Used By", ".status.usedBy", "Namespaces that point to it", type="integer", priority=1),
            _REASON,
            _AGE,
        ),
    ),
    Definition(
        model=PromptCacheNamespace,
        plural="promptcachenamespaces",
        short_name="pcn",
        scope="Namespaced",
        columns=(
            _READY,
            _PHASE,
            Column("Generation", ".status.summary.generation", "First digits of the active generation"),
            Column("Warm", ".status.summary.warm", "Ready and wanted blocks"),
            Column("Hit Ratio", ".status.summary.hitRatio", "Token-weighted, of the last five minutes"),
            Column("Model", ".spec.modelVersionRef.name", "ModelVersion", priority=1),
            _REASON,
            _AGE,
        ),
        selectable=(".spec.modelVersionRef.name",),
    ),
    Definition(
        model=CacheNode,
        plural="cachenodes",
        short_name="cn",
        scope="Cluster",
        columns=(
            _READY,
            _PHASE,
            Column("Member", ".spec.member", "Daemon or gateway"),
            Column("Node", ".spec.nodeName", "Node it runs on", priority=1),
            Column("Generations", ".status.summary.generations", "Ready and planned generations"),
            Column("Warm", ".status.summary.warm", "Ready and wanted blocks"),
            Column("Hit Ratio", ".status.summary.hitRatio", "Token-weighted, of the last five minutes"),
            _AGE,
        ),
        selectable=(".spec.nodeName",),
    ),
)
