"""What is known of the fleet, for those who compose statuses: to be read only."""

from collections.abc import Mapping

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator.members import MemberLedger, MemberView
from kvgrove_operator.plan import Desired, Planned
from kvgrove_operator.plan_state import PlanState
from kvgrove_operator.records import Records
from kvgrove_protocol.control import DAEMON, NamespacePlan


class FleetFacts:
    """`fleet.Fleet` is the one who changes them."""

    def __init__(self, ledger: MemberLedger, state: PlanState, records: Records) -> None:
        self._ledger, self._state, self._records = ledger, state, records
        self._desired = Desired()
        self._planned: Planned | None = None
        self._plans: Mapping[str, NamespacePlan] = {}
        self._resources: Mapping[str, PromptCacheNamespace] = {}

    @property
    def ledger(self) -> MemberLedger:
        """To be read only."""
        return self._ledger

    @property
    def planned(self) -> Planned | None:
        """The plan in force."""
        return self._planned

    @property
    def state(self) -> PlanState:
        """What is durable."""
        return self._state

    def resource(self, uid: str) -> PromptCacheNamespace | None:
        """The namespace as it is planned: not as it may have been declared since."""
        return self._resources.get(uid)

    def plan_of(self, uid: str) -> NamespacePlan | None:
        """What is in force for the namespace; None: nothing can serve it."""
        return self._plans.get(uid)

    @property
    def desired(self) -> Desired:
        """What the plan in force was made of."""
        return self._desired

    def views(self) -> dict[str, MemberView]:
        """Connected members, by name."""
        return {view.hello.member: view for view in self._ledger.members}

    def daemons(self) -> dict[str, MemberView]:
        return {name: view for name, view in self.views().items() if view.hello.role == DAEMON}

    def recorded_members(self) -> dict[str, str]:
        """Every member that is on record or connected -> its role."""
        return self._records.members(self._ledger)
