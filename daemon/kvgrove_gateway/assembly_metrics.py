"""What is counted of assembly: how much of prompts was tokenised before, what templates cost, what gave way.

Registers itself, so that whoever renders metrics need not know it. Labels are names of namespaces of the plan and
closed lists (I12). Called from the assembly threads and the loop.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from kvgrove_prompt.continuity import TemplateWarning

UNKNOWN = "-"
"""Label of a namespace that has left the plan meanwhile."""


class AssemblyMetrics:
    """A `kvgrove_prompt.assembly_cache.Watcher` of one gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._names: Mapping[str, str] = {}
        self.tokens = Counter(
            "kvgrove_assembly_tokens",
            "Tokens of prompts' texts, by whether they were known (`known`) or had to be tokenised (`computed`)",
            ["namespace", "source"],
            registry=registry,
        )
        self.evictions = Counter(
            "kvgrove_assembly_evictions",
            "Entries of the assembly cache that gave way for want of room",
            ["namespace"],
            registry=registry,
        )
        self.size = Gauge("kvgrove_assembly_cache_bytes", "Bytes of the assembly cache", registry=registry)
        self.template_kills = Counter(
            "kvgrove_template_kills",
            "Template workers killed because a chat template took too long",
            registry=registry,
        )
        self.template_warnings = Gauge(
            "kvgrove_template_rewrites_after_tokens",
            "Tokens of a small conversation in front of what a chat template re-writes in it, where it does",
            ["bundle", "code"],
            registry=registry,
        )
        self.findings = Counter(
            "kvgrove_lint_findings",
            "Requests whose stable zone varies where prefixes are to be reused, by what varies",
            ["namespace", "kind"],
            registry=registry,
        )

    def name(self, names: Mapping[str, str]) -> None:
        """UID -> name of all namespaces of the plan."""
        self._names = dict(names)

    def looked_up(self, namespace: str, known: int, computed: int) -> None:
        name = self._names.get(namespace, UNKNOWN)
        self.tokens.labels(name, "known").inc(known)
        self.tokens.labels(name, "computed").inc(computed)

    def gave_way(self, namespace: str, entries: int) -> None:
        self.evictions.labels(self._names.get(namespace, UNKNOWN)).inc(entries)

    def warned(self, bundle: str, warnings: Iterable[TemplateWarning]) -> None:
        """What is to be said of the template in the tokenizer bundle whose digest begins with ``bundle``."""
        for warning in warnings:
            self.template_warnings.labels(bundle, warning.code).set(warning.position)

    def dropped(self, bundle: str) -> None:
        """The bundle is not kept any more."""
        self.template_warnings.remove_by_labels({"bundle": bundle})

    def found(self, namespace: str, kinds: Iterable[str]) -> None:
        """The linter's findings in one request, each kind once."""
        for kind in kinds:
            self.findings.labels(self._names.get(namespace, UNKNOWN), kind).inc()

    def forget(self, namespaces: Iterable[str]) -> None:
        """Drop the series of namespaces (names) that are gone."""
        for namespace in namespaces:
            for metric in (self.tokens, self.evictions, self.findings):
                metric.remove_by_labels({"namespace": namespace})
