"""What a soak asks for and changes: namespaces, their documents, who speaks, and what may be reused by whom.

Role: random plans and requests from one seed, and an oracle of its own for isolation and freshness: which prefixes were
asked for under which realm since they were last made unreadable. It knows no keys and no blocks' identities, only
tokens and who said them. Must not know: sockets, processes, time.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import msgspec

from kvgrove_protocol.chain import Span, SpanKind
from kvgrove_protocol.control import DocumentPlan, ErasurePlan, NamespacePlan, QuotaPlan, TtlPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, Isolation, Purge, contributor

BLOCK = 32
TENANTS, USERS = ("acme", "globex"), ("ann", "joe", "kim")
CONVERSATIONS = 40
PREFIX, DOCUMENT = 2 * BLOCK, 2 * BLOCK + 16
ISOLATIONS = {"a": Isolation.TENANT, "b": Isolation.USER, "c": Isolation.PUBLIC}
NO_LEASE_S = 4.0


def text(count: int, *of: object) -> list[int]:
    """Always the same tokens for the same ``of``."""
    rng = random.Random(repr(of))
    return [rng.randrange(300, 1000) for _ in range(count)]


@dataclass(frozen=True)
class Prompt:
    """What one request says, and where."""

    namespace: str
    caller: Caller
    tokens: tuple[int, ...]
    spans: tuple[Span, ...]

    @property
    def packed(self) -> bytes:
        return struct.pack(f"<{len(self.tokens)}I", *self.tokens)


@dataclass
class Home:
    """One namespace: its plan now, and what was said under it."""

    plan: NamespacePlan
    said: dict[tuple[object, ...], set[Caller]] = field(default_factory=dict)
    """Scope and tokens of a prefix of full blocks -> who said it."""
    erasures: int = 0


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.homes = {name: Home(self._founded(name, 1)) for name in ISOLATIONS}
        self.lives = dict.fromkeys(ISOLATIONS, 1)
        self.erase_uids: list[str] = []

    def _founded(self, name: str, life: int) -> NamespacePlan:
        return NamespacePlan(
            uid=f"uid-{name}-{life}",
            name=f"team/{name}",
            model="tiny",
            isolation=ISOLATIONS[name],
            purge=Purge(1, self.rng.randbytes(16)),
            fence=Fence(1, 1, 1),
            lease_seconds=NO_LEASE_S,
            documents=[self._document(1)],
            secret=self.rng.randbytes(32),
            pseudonym_key=self.rng.randbytes(32),
            ttl=TtlPlan(seconds=15.0 if name == "c" else 600.0),
            tenant_share=80,
        )

    def _document(self, epoch: int) -> DocumentPlan:
        # Three texts take turns, so that an old one comes back under a new epoch.
        return DocumentPlan(name="manual", version=f"v{epoch % 3}", body=bytes([epoch % 3]) * 32, epoch=epoch)

    @property
    def plans(self) -> list[NamespacePlan]:
        return [home.plan for home in self.homes.values()]

    # -- requests ------------------------------------------------------------------------------------------------------

    def prompt(self) -> Prompt:
        name = self.rng.choice(list(self.homes))
        home, rng = self.homes[name], self.rng
        tokens, spans = text(PREFIX, "prefix", name), [Span(SpanKind.PREFIX, 0, PREFIX, name="p")]
        if rng.random() < 0.5:
            document = home.plan.documents[0]
            stop = len(tokens) + DOCUMENT
            spans.append(Span(SpanKind.DOCUMENT, len(tokens), stop, document=document.reference))
            tokens += text(DOCUMENT, "document", document.body)
        turn = rng.randrange(1, 5)
        own = text(400, "conversation", rng.randrange(CONVERSATIONS))[: 20 + 80 * turn]
        spans.append(Span(SpanKind.PRIVATE, len(tokens), len(tokens) + len(own)))
        caller = Caller(tenant=rng.choice(TENANTS), user=rng.choice(USERS))
        return Prompt(name, caller, tuple(tokens + own), tuple(spans))

    def _scope(self, prompt: Prompt, upto: int) -> tuple[object, ...]:
        """All but the tokens that decides who may reuse the first ``upto`` tokens."""
        plan = self.homes[prompt.namespace].plan
        scope: list[object] = [plan.uid, plan.purge.counter]
        for span in prompt.spans:
            if span.start < upto and span.document is not None:
                scope.append(span.document.label)
            if span.start < upto and span.kind is SpanKind.PRIVATE and plan.isolation is not Isolation.PUBLIC:
                by_user = plan.isolation is Isolation.USER
                scope.append((prompt.caller.tenant, prompt.caller.user if by_user else ""))
        return tuple(scope)

    def note(self, prompt: Prompt) -> None:
        """``prompt`` is about to be asked: from now on its blocks may be met."""
        said = self.homes[prompt.namespace].said
        for upto in range(BLOCK, len(prompt.tokens) + 1, BLOCK):
            known = said.setdefault((*self._scope(prompt, upto), prompt.tokens[:upto]), set())
            if upto > prompt.spans[-1].start:
                known.add(prompt.caller)

    def may_reuse(self, prompt: Prompt, tokens: int) -> bool:
        """Whether anything that ``prompt``'s caller may meet can have left its first ``tokens`` tokens."""
        return (*self._scope(prompt, tokens), prompt.tokens[:tokens]) in self.homes[prompt.namespace].said

    # -- changes -------------------------------------------------------------------------------------------------------

    def purge(self) -> None:
        home = self._any()
        counter = home.plan.purge.counter + 1
        fence = msgspec.structs.replace(home.plan.fence, purge=counter)
        self._change(home, purge=Purge(counter, self.rng.randbytes(16)), fence=fence)
        home.said.clear()

    def change_document(self) -> None:
        home = self._any()
        self._change(home, documents=[self._document(home.plan.documents[0].epoch + 1)], fence=_moved(home.plan))

    def change_quota(self) -> None:
        home, rng = self._any(), self.rng
        quota = {} if rng.random() < 0.4 else {"host": QuotaPlan(ceiling=rng.randrange(20, 60) * 24_576)}
        self._change(home, quota=quota)

    def erase(self) -> bool:
        """Begin an erasure of a user, a tenant or a document, if none is under way there."""
        home = self._any()
        plan = home.plan
        if plan.erasures:
            return False
        home.erasures += 1
        selector = self.rng.choice(("user", "tenant", "document"))
        erasure = ErasurePlan(id=f"e{home.erasures}", epoch=home.erasures, document="manual")
        documents = plan.documents
        if selector == "document":
            documents = [self._document(plan.documents[0].epoch + 1)]
        else:
            tenant = self.rng.choice(TENANTS)
            user = self.rng.choice(USERS) if selector == "user" else None
            who = contributor(plan.pseudonym_key, tenant, user)
            erasure = ErasurePlan(id=f"e{home.erasures}", epoch=home.erasures, tenant=who.tenant, user=who.user)
            _forget(home, tenant, user)
        secret = self.rng.randbytes(32)
        self._change(
            home,
            erasures=[erasure],
            documents=documents,
            former_secret=plan.secret,
            secret=secret,
            fence=_moved(plan),
        )
        return True

    def erased(self, uid: str, erasure: str) -> bool:
        """The receipt of ``erasure`` (empty: all of the namespace) has come; whether it was still waited for."""
        if not erasure and uid in self.erase_uids:
            self.erase_uids.remove(uid)
            return True
        for home in self.homes.values():
            if home.plan.uid == uid and any(each.id == erasure for each in home.plan.erasures):
                self._change(home, erasures=[], former_secret=b"")
                return True
        return False

    def replace_namespace(self) -> None:
        """Delete one, and let another of the same name take its place."""
        name = self.rng.choice(list(self.homes))
        self.erase_uids.append(self.homes[name].plan.uid)
        self.lives[name] += 1
        self.homes[name] = Home(self._founded(name, self.lives[name]))

    @property
    def erasing(self) -> list[str]:
        """What is still to be erased."""
        return [*self.erase_uids, *(f"{plan.uid}/{each.id}" for plan in self.plans for each in plan.erasures)]

    def _any(self) -> Home:
        return self.homes[self.rng.choice(list(self.homes))]

    def _change(self, home: Home, **fields: object) -> None:
        home.plan = msgspec.structs.replace(home.plan, **fields)


def _moved(plan: NamespacePlan) -> Fence:
    return msgspec.structs.replace(plan.fence, documents=plan.fence.documents + 1)


def _forget(home: Home, tenant: str, user: str | None) -> None:
    """Take back what they alone said. What another said too may have been stored by them."""
    kept: dict[tuple[object, ...], set[Caller]] = {}
    for key, callers in home.said.items():
        others = {each for each in callers if each.tenant != tenant or user not in (None, each.user)}
        if others or not callers:
            kept[key] = others
    home.said = kept
