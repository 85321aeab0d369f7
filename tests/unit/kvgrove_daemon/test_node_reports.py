"""How warm coming versions of documents are said to be while several generations serve a namespace."""

from kvgrove_daemon.commands import WarmFence
from kvgrove_daemon.core import Published
from kvgrove_daemon.namespaces import PlanTable
from kvgrove_daemon.reporting import NodeState, namespace_reports
from kvgrove_daemon.warm_set import Warmth
from kvgrove_protocol.control import (
    DocumentPlan,
    GenerationPlan,
    ModelPlan,
    NamespacePlan,
    NamespaceReport,
    NodePlan,
    Revision,
)
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import GenerationInputs, Purge, generation

FENCE = Fence(1, 4, 1)
RESOLVED = WarmFence(FENCE, (5,))
INPUTS = {
    name: GenerationInputs(
        weights=f"sha256:{name}", tokenizer="t", chat_template="c", kv_dtype="float32", block_size=32
    )
    for name in ("v1", "v2")
}
OLD, NEW = (("uid", generation(INPUTS[name])) for name in ("v1", "v2"))


def report(weight: int, published: Published, held: tuple[str, ...] = ("v1", "v2")) -> NamespaceReport:
    models = [
        ModelPlan(name=name, path="/m", inputs=INPUTS[name], generation=generation(INPUTS[name])) for name in held
    ]
    namespace = NamespacePlan(
        uid="uid",
        name="team/bot",
        model="v1",
        generations=[GenerationPlan(model="v2", weight=weight)],
        purge=Purge(1, b"n" * 16),
        fence=FENCE,
        coming=[DocumentPlan(name="law", version="2", body=b"d" * 32, epoch=5)],
    )
    table = PlanTable().apply(NodePlan(revision=Revision(1, 1), models=models, namespaces=[namespace]), {})
    (found,) = namespace_reports(NodeState(table, published, {}, {}))
    return found


def coming(found: NamespaceReport) -> tuple[list[int], int, int]:
    return found.coming, found.coming_ready, found.coming_wanted


WARMTH = {OLD: Warmth(3, 4, 8, 10), NEW: Warmth(1, 4, 2, 10)}


def test_a_coming_document_is_as_warm_as_under_all_generations_that_take_traffic() -> None:
    found = report(10, Published(warmth=WARMTH, warm_fences={OLD: RESOLVED, NEW: RESOLVED}))
    assert coming(found) == ([5], 10, 20)
    assert (found.warm_ready, found.warm_wanted) == (3, 4), "of the one that serves"


def test_a_generation_with_traffic_that_has_not_resolved_it_yet_says_nothing() -> None:
    found = report(10, Published(warmth=WARMTH, warm_fences={OLD: RESOLVED, NEW: WarmFence(FENCE, ())}))
    assert coming(found) == ([], 0, 0)


def test_a_generation_without_traffic_holds_no_document_up() -> None:
    found = report(0, Published(warmth=WARMTH, warm_fences={OLD: RESOLVED}))
    assert coming(found) == ([5], 8, 10)


def test_a_node_tells_of_the_generations_that_it_holds_and_of_no_others() -> None:
    """Of a namespace that moves to other nodes: those hold the next generation alone, these the present one alone."""
    warm = Published(warmth=WARMTH, warm_fences={OLD: RESOLVED, NEW: RESOLVED})
    assert coming(report(10, warm, held=("v1",))) == ([5], 8, 10)
    assert coming(report(10, warm, held=("v2",))) == ([5], 2, 10)
    assert coming(report(0, warm, held=("v2",))) == ([], 0, 0), "nobody is answered by it yet"
    assert coming(report(10, warm, held=())) == ([], 0, 0)
