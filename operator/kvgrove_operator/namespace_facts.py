"""What is known of one namespace at one moment, for those who judge it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_operator.holdings import Invalidation
from kvgrove_operator.plan_problems import PlanProblem
from kvgrove_operator.plan_state import NamespaceState, Proof
from kvgrove_operator.rollout.facts import RolloutState
from kvgrove_operator.rollout.words import Said, said
from kvgrove_operator.work_queue import Trouble
from kvgrove_protocol.control import ModelPlan, NamespacePlan, NamespaceReport


@dataclass(frozen=True)
class NamespaceFacts:
    resource: PromptCacheNamespace
    """As it is planned, which may be older than what is declared."""
    before: PromptCacheNamespaceStatus
    state: NamespaceState | None
    plan: NamespacePlan | None
    """None: nothing can serve it."""
    models: Mapping[str, ModelPlan]
    nodes: Mapping[str, NamespaceReport | None]
    """Every node that should hold it -> what it reported of it under a plan of this leader; None: nothing yet."""
    beside: Mapping[str, NamespaceReport | None]
    """The same of the nodes that hold a generation beside the one that serves, which may be of another placement."""
    connected: frozenset[str]
    nodes_wanted: int
    """Nodes that match the placement; some may have no Pod yet."""
    invalidation: Invalidation | None
    proofs: Mapping[str, Proof]
    problems: tuple[PlanProblem, ...]
    trouble: Trouble | None
    now: datetime

    @property
    def wanted_model(self) -> str:
        return self.resource.spec.model_version_ref.name

    @property
    def served(self) -> ModelPlan | None:
        """The model that answers, once it has a generation."""
        model = self.models.get(self.plan.model) if self.plan is not None else None
        return model if model is not None and model.generation else None

    @property
    def missing(self) -> tuple[str, ...]:
        """Nodes that should be there and are not connected."""
        return tuple(sorted(node for node in self.nodes if node not in self.connected))

    @property
    def behind(self) -> tuple[str, ...]:
        """Connected nodes that have not confirmed the fence in force."""
        if self.plan is None:
            return ()
        fence = self.plan.fence
        return tuple(
            sorted(
                node
                for node, report in self.nodes.items()
                if node in self.connected and (report is None or not report.fence.covers(fence))
            )
        )

    @property
    def reports(self) -> list[NamespaceReport]:
        return [report for report in self.nodes.values() if report is not None]

    @property
    def rollout(self) -> RolloutState:
        return (self.state.rollout if self.state is not None else None) or RolloutState()

    @property
    def said(self) -> Said:
        """Where the rollout stands, in words."""
        return said(self.rollout, self.resource.spec.rollout, self.wanted_model)

    @property
    def coming(self) -> bytes:
        """The generation that is served beside the active one on its way to promotion; empty: none."""
        beside = {each.model for each in self.plan.generations} if self.plan is not None else set()
        candidate = self.rollout.candidate
        return candidate.generation if candidate is not None and candidate.model in beside else b""

    @property
    def warmth(self) -> tuple[int, int]:
        """READY and wanted blocks over all nodes, of the generation that is to serve next."""
        if not self.coming:
            found = [(each.warm_ready, each.warm_wanted) for each in self.reports]
        else:
            reports = [report for report in self.beside.values() if report is not None]
            several = (each for report in reports for each in report.generations)
            found = [(each.warm_ready, each.warm_wanted) for each in several if each.generation == self.coming]
        return sum(ready for ready, _ in found), sum(wanted for _, wanted in found)

    @property
    def warm(self) -> bool:
        """Whether every node holds what is to be warm, by the declared ratio."""
        ratio = self.resource.spec.warmup.minimum_ratio
        return all(
            report is not None and report.warm_resolved and report.warm_ready >= ratio * report.warm_wanted
            for report in self.nodes.values()
        )
