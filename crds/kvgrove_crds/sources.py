"""Where a model's files come from, and references to ConfigMaps and Secrets.

A source names exact content (a full commit) or a place that somebody else keeps (a volume, a host path); the nodes
report the digests of what they found, so neither is trusted blindly.
"""

from kvgrove_crds.base import Spec
from kvgrove_crds.cel import Rule, when
from kvgrove_crds.names import AbsolutePath, Commit, DataKey, DnsName, RelativePath, Repository


def exactly_one(**fields: str) -> Rule:
    """A rule that exactly one of the optional fields (Python name = YAML name) is set."""
    aliases = ", ".join(fields.values())
    counted = " + ".join(f"(has(self.{alias}) ? 1 : 0)" for alias in fields.values())
    return Rule(
        cel=f"{counted} == 1",
        says=f"exactly one of {aliases} is set",
        cure="keep the one you mean and delete the others",
        broken=lambda value: when(sum(getattr(value, name) is not None for name in fields) != 1),
    )


class HuggingFaceSource(Spec):
    """A repository of the Hugging Face hub (or of a mirror with the same interface) at one commit."""

    repo: Repository
    """Repository as OWNER/NAME."""
    revision: Commit
    """Full commit (40 hex digits). Branches and tags move, so they are refused."""


class PvcSource(Spec):
    """A directory of a PersistentVolumeClaim in the operator's namespace."""

    claim_name: DnsName
    """Name of the claim."""
    path: RelativePath = ""
    """Directory inside the volume; empty is its root."""


class HostPathSource(Spec):
    """A directory on every node."""

    path: AbsolutePath
    """Absolute path of the directory."""


class ModelSource(Spec):
    """Where weights, config and tokenizer lie: exactly one of the three."""

    rules = (exactly_one(hugging_face="huggingFace", pvc="pvc", host_path="hostPath"),)

    hugging_face: HuggingFaceSource | None = None
    """A Hugging Face repository at a commit."""
    pvc: PvcSource | None = None
    """A directory of a volume."""
    host_path: HostPathSource | None = None
    """A directory of the node."""


class TokenizerSource(Spec):
    """A tokenizer directory that replaces the one beside the weights."""

    rules = (exactly_one(pvc="pvc", host_path="hostPath"),)

    pvc: PvcSource | None = None
    """A directory of a volume."""
    host_path: HostPathSource | None = None
    """A directory of the node."""


class ConfigMapKeyRef(Spec):
    """One key of a ConfigMap."""

    name: DnsName
    """Name of the ConfigMap."""
    key: DataKey
    """Key in its data."""


class SecretKeyRef(Spec):
    """One key of a Secret."""

    name: DnsName
    """Name of the Secret."""
    key: DataKey = "token"
    """Key in its data."""
