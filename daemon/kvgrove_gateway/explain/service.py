"""Explains prompts against the fleet as it is: resolve, assemble, ask the nodes, compare.

The way of a request up to the point where it would be sent, then `Explain` in place of `Generate`: permission,
references and fences are checked alike, and nothing is computed, stored or counted as a prompt. A caller is told of the
node that would answer and of nothing that depends on others (I2): no other nodes, no route. Texts stay in the answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvgrove_gateway.ask import ChatPrompt
from kvgrove_gateway.chat import Call, Chat
from kvgrove_gateway.errors import BadRequest, NodeLost, NodeRefused, Unavailable
from kvgrove_gateway.explain.bodies import Asked, AskedPrompt
from kvgrove_gateway.explain.changes import changes
from kvgrove_gateway.explain.parting import Keyed, parting
from kvgrove_gateway.explain.pieces import at_their_places, pieces_of
from kvgrove_gateway.explain.report import CandidateView, NodeView, PromptView, Report, RouteView
from kvgrove_gateway.fleet import Fleet
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.namespaces import Resolution
from kvgrove_gateway.node_link import NodeLink
from kvgrove_gateway.prepare import Prepared
from kvgrove_gateway.router.decide import Decision
from kvgrove_gateway.tokenizers import AssemblyThreads
from kvgrove_prompt.prompt import Prompt
from kvgrove_protocol.data import Explained, ExplainedRange, Generate, Sampling
from kvgrove_protocol.identity import Caller, short

NODES = 64
"""Asked for one prompt, at most."""
NODE_S = 5.0
"""A node's core answers between two engine steps; one that takes longer is told as such."""


@dataclass(frozen=True)
class _Answer:
    node: str
    ranges: Sequence[ExplainedRange]
    problem: str = ""


@dataclass(frozen=True, repr=False)
class _Looked:
    """One prompt with what the fleet says of it."""

    asked: AskedPrompt
    prompt: Prompt
    """Its segments named as the body has them."""
    resolution: Resolution
    prepared: Prepared
    decision: Decision
    answers: Sequence[_Answer]
    """The chosen node's first."""


class Explainer:
    """On the event loop; texts are cut in ``threads``."""

    def __init__(self, chat: Chat, fleet: Fleet, threads: AssemblyThreads, *, new_id: Callable[[], str]) -> None:
        self._chat = chat
        self._fleet = fleet
        self._threads = threads
        self._new_id = new_id

    async def explain(self, identity: Identity, asked: Asked, *, operator: bool) -> Report:
        """Raises ApiError as the requests themselves would."""
        looked = [
            await self._look(_on_behalf(identity, caller), prompt, operator=operator)
            for prompt, caller in zip(asked.prompts, asked.callers, strict=True)
        ]
        return await self._threads.run(lambda: _report(looked, operator=operator))

    async def _look(self, identity: Identity, asked: AskedPrompt, *, operator: bool) -> _Looked:
        name = f"explain-{self._new_id()}"
        resolution, prepared = await self._chat.prepare(Call(id=name, identity=identity, ask=asked.ask, arrived=0.0))
        model = resolution.model
        placement = self._fleet.place(prepared.prompt.count, prepared.keys, model.block_size, placement=model.placement)
        chosen = placement.link
        others = [link for link in self._fleet.ready_for(model.placement) if link is not chosen] if operator else []
        request = Generate(
            request_id=name,
            namespace_uid=resolution.namespace.uid,
            generation=model.generation,
            fence=resolution.fence,
            caller=resolution.caller,
            tokens=prepared.prompt.tokens,
            spans=prepared.prompt.spans,
            sampling=Sampling(),
            max_new_tokens=1,
            prompt_logprobs=asked.ask.prompt_logprobs,
        )
        answers = await asyncio.gather(*(self._ask(link, request) for link in [chosen, *others][:NODES]))
        if answers[0].problem == "context_length_exceeded":
            raise BadRequest(
                "The prompt does not fit the model's context: shorten the messages.",
                field="messages",
                code="context_length_exceeded",
            )
        if answers[0].problem and not operator:
            raise Unavailable("The node that would answer could not explain: try again.", code="not_explained")
        places = asked.ask.prompt.places if isinstance(asked.ask.prompt, ChatPrompt) else ()
        prompt = at_their_places(prepared.prompt, places)
        return _Looked(asked, prompt, resolution, prepared, placement.decision, answers)

    async def _ask(self, link: NodeLink, request: Generate) -> _Answer:
        try:
            async with asyncio.timeout(NODE_S):
                explained: Explained = await link.explain(request)
        except TimeoutError:
            return _Answer(link.name, (), "no_answer")
        except (NodeLost, NodeRefused) as error:
            return _Answer(link.name, (), error.code)
        return _Answer(link.name, explained.ranges)


def _on_behalf(identity: Identity, caller: Caller | None) -> Identity:
    """Whom the namespace's rule is asked about. The credential's own limit stays."""
    return identity if caller is None else replace(identity, caller=caller)


def _report(looked: Sequence[_Looked], *, operator: bool) -> Report:
    prompts = [_prompt_view(each, operator=operator) for each in looked]
    if len(looked) == 1:
        return Report(prompts=prompts)
    one, other = looked
    return Report(
        prompts=prompts,
        parting=parting(_keyed(one), _keyed(other), one.resolution.model.block_size),
        changes=changes(one.asked.body, other.asked.body),
    )


def _keyed(looked: _Looked) -> Keyed:
    resolution, tokenizer = looked.resolution, looked.prepared.tokenizer
    return Keyed(
        prompt=looked.prompt,
        decode=tokenizer.decode,
        keys=looked.prepared.keys,
        namespace=resolution.namespace.uid,
        generation=resolution.model.generation,
        documents=tuple((each.name, each.epoch) for each in resolution.documents),
    )


def _prompt_view(looked: _Looked, *, operator: bool) -> PromptView:
    prompt, resolution, first = looked.prompt, looked.resolution, looked.answers[0]
    ranges = first.ranges or [ExplainedRange(0, prompt.count)]
    views = [_node_view(answer) for answer in looked.answers]
    return PromptView(
        model=looked.asked.ask.model,
        namespace=resolution.namespace.name,
        generation=short(resolution.model.generation),
        tokens=prompt.count,
        block_size=resolution.model.block_size,
        node=first.node,
        reused_tokens=sum(views[0].reused.values()),
        missed=views[0].missed,
        pieces=pieces_of(prompt, ranges, looked.prepared.tokenizer.decode),
        nodes=views,
        route=_route_view(looked.decision) if operator else None,
    )


def _node_view(answer: _Answer) -> NodeView:
    reused: dict[str, int] = {}
    missed: dict[str, int] = {}
    for each in answer.ranges:
        counts, name = (missed, each.reason.value) if each.reason is not None else (reused, each.tier)
        counts[name] = counts.get(name, 0) + each.end - each.start
    return NodeView(node=answer.node, reused=reused, missed=missed, problem=answer.problem)


def _route_view(decision: Decision) -> RouteView:
    return RouteView(
        node=decision.node,
        why=decision.why.value,
        matched_tokens=decision.matched_tokens,
        expected_s=round(decision.expected_s, 6),
        candidates=[CandidateView(**row._asdict()) for row in decision.explain()],
    )
