"""A rollout in an embedded fleet: two nodes, two gateways, real models, one changed line at a time.

Two versions differ in weights, and a third in nothing but its chat template. Steps are left by editing their pauses, as
Git would: no test waits for a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fleets import NAMESPACE, POLICIES, STEP_SECONDS, RunningFleet, running_fleet
from tokenizers import Tokenizer

from kvgrove_cli.durable import write_atomically
from kvgrove_cli.status import NamespaceStatus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HOUR = "1h"
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + ':\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant:\n' }}{% endif %}"
)


class Declared:
    """What is in the manifests, changed a field at a time."""

    def __init__(self, running: RunningFleet, first: Path, second: Path) -> None:
        self.running = running
        self.models: dict[str, dict[str, Any]] = {
            "tiny": {"source": {"hostPath": {"path": str(first)}}, "pool": {"host": "64Mi"}},
            "other-weights": {"source": {"hostPath": {"path": str(second)}}, "pool": {"host": "64Mi"}},
            "other-template": {
                "source": {"hostPath": {"path": str(first)}},
                "pool": {"host": "64Mi"},
                "chatTemplateFrom": {"inline": TEMPLATE},
            },
        }
        self.namespace: dict[str, Any] = {
            "modelVersionRef": {"name": "tiny"},
            "freshness": {"lease": "5s"},
            "prefixes": [
                {
                    "name": "support",
                    "version": "v1",
                    "text": "You answer questions of customers about orders, returns and rentals of bicycles.",
                    "documents": ["policy"],
                }
            ],
            "documents": [{"name": "policy", "version": "v1", "text": POLICIES["v1"]}],
            "warmup": {"topK": 0},
            "rollout": {"steps": [{"weight": 50, "pause": HOUR}, {"weight": 100, "pause": HOUR}], "window": HOUR},
        }

    def apply(self, **spec: Any) -> None:
        self.namespace |= spec
        items = [
            {"apiVersion": "kvgrove.dev/v1alpha1", "kind": "ModelVersion", "metadata": {"name": name}, "spec": each}
            for name, each in self.models.items()
        ]
        namespace, _, name = NAMESPACE.partition("/")
        items.append(
            {
                "apiVersion": "kvgrove.dev/v1alpha1",
                "kind": "PromptCacheNamespace",
                "metadata": {"namespace": namespace, "name": name},
                "spec": self.namespace,
            }
        )
        write_atomically(self.running.manifests / "all.yaml", yaml.safe_dump_all(items).encode())
        self.running.do(self.running.fleet.apply())

    def move_to(self, model: str) -> None:
        self.apply(modelVersionRef={"name": model})

    def steps(self, *pauses: str, **rollout: Any) -> None:
        weights = [{"weight": weight, "pause": pause} for weight, pause in zip((50, 100), pauses, strict=True)]
        self.apply(rollout=self.namespace["rollout"] | {"steps": weights} | rollout)

    def until(self, good: Callable[[NamespaceStatus], bool]) -> NamespaceStatus:
        fleet = self.running.fleet
        found = self.running.do(fleet.wait_for(lambda now: good(now.namespace(NAMESPACE)), STEP_SECONDS))
        return found.namespace(NAMESPACE)

    def phase(self, *phases: str) -> NamespaceStatus:
        return self.until(lambda now: now.rollout.phase in phases)

    def generation(self, model: str) -> str:
        return next(each.generation for each in self.running.fleet.status().models if each.name == model)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[..., Path]) -> Iterator[RunningFleet]:
    with running_fleet(tmp_path_factory.mktemp("rollout"), tiny_model("llama")) as running:
        yield running


@pytest.fixture
def declared(running: RunningFleet, tiny_model: Callable[..., Path]) -> Iterator[Declared]:
    """Each test begins and ends with ``tiny`` alone, whatever it was about."""
    found = Declared(running, tiny_model("llama"), tiny_model("llama", seed=8))
    found.apply()
    running.do(running.fleet.ready(STEP_SECONDS))
    yield found
    found.move_to("tiny")
    found.steps("0s", "0s", window="0s")
    found.until(lambda now: now.model == "tiny" and not now.rollout.previous and not now.rollout.candidate)
    found.until(lambda now: all(each.state == "Verified" for each in now.erasures))


def ask(running: RunningFleet, *said: tuple[str, str], gateway: int = 0, **body: Any) -> dict[str, Any]:
    messages = [{"role": role, "content": text} for role, text in said]
    answer = running.post(running.fleet.base_urls[gateway], messages=messages, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def by(answer: dict[str, Any]) -> str:
    return str(answer["kvgrove"]["generation"])


def reused(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def placed(running: RunningFleet, count: int, gateway: int = 0) -> dict[int, str]:
    """Number of a question -> the generation that answered it as a new conversation."""
    return {n: by(ask(running, ("user", f"Question {n}?"), gateway=gateway)) for n in range(count)}


LONG = "I bought a bicycle in your shop last week and the bell does not ring, what can be done about it now? " * 3


def test_ops_12_and_ops_14_weights_move_step_by_step_and_nobody_loses_a_conversation(
    running: RunningFleet, declared: Declared
) -> None:
    # given a conversation that began on the first version
    first = ask(running, ("user", LONG))
    old, new = declared.generation("tiny"), declared.generation("other-weights")
    second_turn = [("user", LONG), ("assistant", "We will see to it."), ("user", "And when?")]
    # when one line changes
    declared.move_to("other-weights")
    found = declared.phase("Shifting")
    # then both serve, the new one is warm on all nodes, and new conversations are shared out alike by both gateways
    assert (found.model, found.rollout.candidate, found.rollout.weight) == ("tiny", "other-weights", 50)
    assert found.rollout.warm_ready == found.rollout.warm_wanted > 0
    one, other = (placed(running, 24, gateway) for gateway in (0, 1))
    assert set(one.values()) == {old, new}
    assert one == other
    # and the conversation goes on where its history is, through either gateway, and reuses it
    for gateway in (0, 1):
        answer = ask(running, *second_turn, gateway=gateway)
        assert by(answer) == old
        assert reused(answer) > 0
    # and declared text that the new one has never answered about is reused from its own warm-up
    on_new = next(n for n, generation in one.items() if generation == new)
    assert reused(ask(running, ("user", f"Question {on_new}?"))) > 0
    # when the last step is over
    declared.steps("0s", "0s")
    found = declared.phase("Promoted")
    assert (found.model, found.rollout.previous) == ("other-weights", "tiny")
    assert set(placed(running, 12).values()) == {new}
    assert by(ask(running, *second_turn)) == old, "until the window ends"
    # when it is taken back within the window, the old one's entries hit again, and the new one answers nobody
    declared.steps(HOUR, HOUR)
    declared.move_to("tiny")
    declared.phase("RolledBack")
    again = ask(running, ("user", LONG))
    assert by(again) == old
    assert reused(again) >= first["usage"]["prompt_tokens"] // 32 * 32 - 32
    assert set(placed(running, 12, gateway=1).values()) == {old}
    # and what was computed by it is erased, with a receipt of every member
    found = declared.until(lambda now: bool(now.erasures) and now.erasures[-1].state == "Verified")
    assert found.erasures[-1].name == f"generation {new}"
    assert found.erasures[-1].confirmed == 4
    assert sum(found.erasures[-1].places.values()) > 0


def test_cor_01_nothing_of_one_generation_is_reused_by_the_other(running: RunningFleet, declared: Declared) -> None:
    cold = ask(running, ("user", LONG), kvgrove={})
    assert reused(ask(running, ("user", LONG), kvgrove={})) > 0
    declared.steps("0s", "0s", window="0s")
    declared.move_to("other-weights")
    found = declared.until(lambda now: now.model == "other-weights" and now.rollout.phase == "Promoted")
    answer = ask(running, ("user", LONG), kvgrove={}, logprobs=True)
    assert (by(answer), reused(answer)) == (found.generation, 0)
    assert answer["usage"]["prompt_tokens"] == cold["usage"]["prompt_tokens"]
    again = ask(running, ("user", LONG), kvgrove={}, logprobs=True)
    assert reused(again) > 0
    tokens, cold_tokens = (each["choices"][0]["logprobs"]["content"] for each in (again, answer))
    for warm_token, cold_token in zip(tokens, cold_tokens, strict=True):
        assert warm_token["token"] == cold_token["token"]
        assert abs(warm_token["logprob"] - cold_token["logprob"]) < 1e-4


def test_what_was_asked_most_is_warm_under_other_weights_and_nowhere_else(
    running: RunningFleet, declared: Declared
) -> None:
    declared.apply(warmup={"topK": 8})
    for _ in range(2):
        ask(running, ("user", LONG), kvgrove={})
    declared.steps("0s", "0s")
    declared.move_to("other-weights")
    found = declared.until(lambda now: now.model == "other-weights" and now.rollout.phase == "Promoted")
    answer = ask(running, ("user", LONG), kvgrove={})
    assert by(answer) == found.generation
    assert reused(answer) >= answer["usage"]["prompt_tokens"] // 32 * 32 - 32
    assert reused(ask(running, ("user", LONG), kvgrove={}, tenant="globex")) == 0, "it is who asked that it is warm for"


def test_a_template_alone_is_a_rollout_and_waits_for_approval_where_that_is_asked_for(
    running: RunningFleet, declared: Declared, tiny_model: Callable[..., Path]
) -> None:
    declared.steps(HOUR, HOUR, approval="Manual")
    declared.move_to("other-template")
    found = declared.phase("AwaitingApproval")
    assert found.rollout.candidate_generation == declared.generation("other-template") != declared.generation("tiny")
    assert set(placed(running, 8).values()) == {declared.generation("tiny")}
    declared.steps(HOUR, HOUR, approval="Manual", approvedGeneration=found.rollout.candidate_generation)
    declared.phase("Shifting")
    assert set(placed(running, 24).values()) == {declared.generation("tiny"), declared.generation("other-template")}
    # and what is counted and explained is the prompt of the generation that answers then, whatever serves
    tokenizer, around = Tokenizer.from_file(str(tiny_model("llama") / "tokenizer.json")), dict[str, set[int]]()
    for number in range(24):
        question = f"Is number {number:02} there?"
        counted, explained = _looked_at(running, question)
        answer = ask(running, ("user", question), kvgrove={})
        assert counted == explained["tokens"] == answer["usage"]["prompt_tokens"]
        assert explained["generation"] == by(answer)
        around.setdefault(by(answer), set()).add(counted - len(tokenizer.encode(question).ids))
    assert [len(each) for each in around.values()] == [1, 1]
    assert len(set.union(*around.values())) == 2, "their templates differ in length"


def _looked_at(running: RunningFleet, question: str) -> tuple[int, dict[str, Any]]:
    """What ``count_tokens`` and an explanation say of a question that nobody has asked yet."""
    url, key = running.fleet.base_urls[1], {"Authorization": f"Bearer {running.keys['acme']}"}
    body = {"model": NAMESPACE, "messages": [{"role": "user", "content": question}]}
    counted = httpx.post(f"{url}/messages/count_tokens", json=body, headers=key, timeout=STEP_SECONDS)
    assert counted.status_code == 200, counted.text
    explained = httpx.post(f"{url}/explain", json={"requests": [body]}, headers=key, timeout=STEP_SECONDS)
    assert explained.status_code == 200, explained.text
    return int(counted.json()["input_tokens"]), dict(explained.json()["prompts"][0])


def test_a_warm_up_that_cannot_reach_its_ratio_stalls_and_the_old_one_serves_on(
    running: RunningFleet, declared: Declared
) -> None:
    limits = {"deadline": "1s", "minimumRatio": 1.0, "topK": 0}
    declared.apply(quota={"host": {"ceiling": "1Mi"}}, warmup=limits)
    declared.apply(prefixes=[*declared.namespace["prefixes"], {"name": "long", "version": "v1", "text": LONG * 12}])
    declared.move_to("other-weights")
    found = declared.phase("Stalled")
    assert (found.phase, found.rollout.reason) == ("Degraded", "WarmupDeadlineExceeded")
    assert set(placed(running, 8).values()) == {declared.generation("tiny")}
    declared.apply(prefixes=declared.namespace["prefixes"][:1], quota={})
    declared.phase("Shifting")


def test_an_analysis_that_fails_goes_back_by_itself(running: RunningFleet, declared: Declared) -> None:
    limits = {"interval": "1s", "minimumRequests": 1, "minimumHitRatio": 1.0, "inconclusiveLimit": 1000}
    declared.steps(HOUR, HOUR, analysis=limits)
    declared.move_to("other-weights")
    declared.phase("Shifting")
    placed(running, 24)
    found = declared.phase("RolledBack")
    assert (found.phase, found.rollout.reason) == ("Degraded", "AnalysisFailed")
    assert set(placed(running, 8).values()) == {declared.generation("tiny")}


def test_i3_a_document_withdrawn_in_mid_rollout_is_read_by_neither_generation_nor_by_a_rollback(
    running: RunningFleet, declared: Declared
) -> None:
    with_document = {"kvgrove": {"documents": ["policy"]}}
    ask(running, ("user", "May I return it?"), **with_document)
    declared.move_to("other-weights")
    declared.phase("Shifting")
    for n in range(8):
        ask(running, ("user", f"May I return article {n}?"), **with_document)
    fence = declared.until(lambda now: now.invalidation_complete).fence
    bare = [{**declared.namespace["prefixes"][0], "documents": []}]
    declared.apply(documents=[], prefixes=bare)
    declared.until(lambda now: now.fence[1] > fence[1] and now.invalidation_complete)

    def refused() -> set[int]:
        url = running.fleet.base_urls
        return {running.post(url[n % 2], question=f"May I return {n}?", **with_document).status_code for n in range(8)}

    assert refused() == {404}
    declared.move_to("tiny")
    declared.phase("RolledBack")
    assert refused() == {404}
    again = ask(running, ("user", "May I return it?"))
    assert by(again) == declared.generation("tiny")
