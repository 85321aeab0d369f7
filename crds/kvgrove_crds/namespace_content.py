"""What a namespace's prompts share: declared prefixes and documents, each with a version.

Contents are the trusted part of a prompt: they are warmed once per namespace and shared under every isolation level.
Versions are names for people; freshness rests on content digests and epochs, never on a version text.
"""

from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import Spec
from kvgrove_crds.containers import Bounded, ListSet
from kvgrove_crds.durations import Between, Duration
from kvgrove_crds.names import DnsLabel, Principal, Version
from kvgrove_crds.sources import ConfigMapKeyRef, exactly_one

MAX_PREFIXES = 16
MAX_DOCUMENTS = 64
MAX_DOCUMENTS_OF_PREFIX = 16

Text = Annotated[str, Field(min_length=1, max_length=131_072)]
"""Inline text. The API server stores at most about 1.5 MiB per object: longer content belongs in ConfigMaps."""

_CONTENT = exactly_one(text="text", config_map_key_ref="configMapKeyRef")


class PrefixSpec(Spec):
    """A stable beginning of prompts: a system text, then documents in order. Warmed before traffic arrives."""

    rules = (_CONTENT,)

    name: DnsLabel
    """Name by which warm-up and status know it."""
    version: Version
    """Version for people; raise it with the text."""
    text: Text | None = None
    """The system text itself."""
    config_map_key_ref: ConfigMapKeyRef | None = None
    """A ConfigMap key, in the same Kubernetes namespace, that holds the text."""
    documents: Annotated[tuple[DnsLabel, ...], Bounded(MAX_DOCUMENTS_OF_PREFIX)] = ()
    """Names of documents that follow the text, in this order."""


class DocumentSpec(Spec):
    """A text that prompts refer to by name, such as a policy or a manual. A request gets its current version."""

    rules = (_CONTENT,)

    name: DnsLabel
    """Name by which requests and prefixes refer to it."""
    version: Version
    """Version for people; raise it with the text."""
    text: Text | None = None
    """The document itself."""
    config_map_key_ref: ConfigMapKeyRef | None = None
    """A ConfigMap key, in the same Kubernetes namespace, that holds the document."""
    scopes: Annotated[tuple[Principal, ...], ListSet(16)] = ()
    """Scopes a caller must hold, all of them, to refer to it; empty means everyone who may use the namespace."""
    update: Literal["CutFirst", "WarmFirst"] = "CutFirst"
    """For a new text: CutFirst makes the old one unreadable at once, WarmFirst serves it until the new one is warm."""
    warm_deadline: Annotated[Duration, Between("1s", "24h")] = Duration("5m")
    """Under WarmFirst, how long the old version may be served at most."""
