"""What the work queue holds: which object to look at, or which of the things that are one for the whole fleet. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    PLAN = "plan"
    """Everything that is declared: read it anew, and plan. One key."""
    WORKLOADS = "workloads"
    """The DaemonSets of all placements. One key."""
    ALERTS = "alerts"
    """The PrometheusRule with the thresholds of all namespaces. One key."""
    MEMBERS = "members"
    """Whether the Nodes and Pods of recorded members still exist. One key."""
    NAMESPACE = "namespace"
    """Status, finalizer and deletion of a PromptCacheNamespace, by ``<k8s namespace>/<name>``."""
    MODEL = "model"
    """The same of a ModelVersion, by name."""
    NODE = "node"
    """The CacheNode of a member, by its name."""


@dataclass(frozen=True, order=True)
class Key:
    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


PLAN = Key(Kind.PLAN)
WORKLOADS = Key(Kind.WORKLOADS)
ALERTS = Key(Kind.ALERTS)
MEMBERS = Key(Kind.MEMBERS)
