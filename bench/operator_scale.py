"""One operator, many objects, many nodes: on a real API server, with real links of members that have no engine.

``python bench/operator.py --json`` declares 1,000 namespaces and 20 model versions to an operator with 100 nodes, all
on this machine. It prints

- ``converge_s``: from the first object that is created to the last namespace that is Ready as declared;
- ``operator_rss_mb``: the most memory that the operator ever had (10^6 bytes);
- ``purge_ack_p50_s``, ``purge_ack_p99_s``: from ``spec.purge.epoch`` being written to the status saying that every
  node has confirmed, of one purge after the other;
- ``settling_writes_per_s``: all that the operator writes to the API server in the two minutes after the last purge, in
  which the ``CacheNode`` objects follow;
- ``idle_writes_per_s``: all that the operator writes to the API server after that, while nothing happens, its Lease
  included;
- ``failover_s``: from the SIGKILL of the leader, with another one waiting, to a purge that was asked for right after it
  being confirmed by every node.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests" / "support"))  # the rig is the tests' own
sys.path.insert(1, str(Path(__file__).parents[1] / "tests" / "kube"))

from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import Operator, operator, token
from simulated_fleet import (
    Api,
    Size,
    Statuses,
    declare,
    figure,
    members,
    namespace_path,
    node_objects,
    purged,
    rss_mb,
)

_LEASE = ("--lease-duration", "15", "--lease-renewal", "3")  # what an operator has unless it is told otherwise
_CONVERGE_SECONDS, _PURGE_SECONDS = 300.0, 60.0
_SETTLE_SECONDS = 125.0
"""What a purge leaves to be written is due two minutes after it (docs/operator.md)."""


def measure(size: Size, purges: int, idle: float) -> dict[str, float]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # what an operator logs, also as it ends
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgrove-operator-")))
        plane = stack.enter_context(Plane.in_folder(folder / "plane"))
        apply_crds(plane)
        models = folder / "models"
        models.mkdir()
        first = stack.enter_context(operator(plane, folder / "op", models, *_LEASE, light=True))
        second = Operator(token(plane), folder / "second", models, port=first.port, arguments=_LEASE, light=True)
        try:
            stack.enter_context(node_objects(plane, folder, size))
            stack.enter_context(members(plane, first, folder / "members", size))
            return _figures(Scene(Api(plane), first, second, size, models), purges, idle)
        finally:
            if second.process is not None:
                second.process.kill()
                second.process.wait(30)


@dataclass(frozen=True)
class Scene:
    api: Api
    first: Operator
    second: Operator
    size: Size
    models: Path


def _figures(scene: Scene, purges: int, idle: float) -> dict[str, float]:
    api, first, second, size = scene.api, scene.first, scene.second, scene.size
    statuses = Statuses(api)
    began = time.monotonic()
    declare(api, size, scene.models)
    _tell(f"declared after {time.monotonic() - began:.1f} s")
    ended = statuses.wait(lambda: statuses.ready() == size.namespaces, "all of them Ready", _CONVERGE_SECONDS)
    converge = ended - began
    _tell(f"converged after {converge:.1f} s")
    acks = []
    for number in range(purges):
        asked = time.monotonic()
        acks.append(_purged(api, statuses, number % size.namespaces, 1 + number // size.namespaces, size) - asked)
    _tell(f"purges {[round(each, 2) for each in acks]}")
    settling = _writes_per_s(first, _SETTLE_SECONDS)
    writes = _writes_per_s(first, idle)
    assert first.process is not None
    rss = rss_mb(first.process.pid)
    second.start()
    time.sleep(10)
    assert not second.leads()
    first.process.kill()
    first.process.wait(30)
    killed = time.monotonic()
    failover = _purged(api, statuses, 0, 99, size, seconds=_CONVERGE_SECONDS) - killed
    acks.sort()
    return {
        "namespaces": size.namespaces,
        "model_versions": size.models,
        "nodes": size.nodes,
        "converge_s": round(converge, 1),
        "operator_rss_mb": round(rss, 1),
        "purge_ack_p50_s": round(statistics.median(acks), 3),
        "purge_ack_p99_s": round(acks[min(len(acks) - 1, int(len(acks) * 0.99))], 3),
        "settling_writes_per_s": settling,
        "idle_writes_per_s": writes,
        "failover_s": round(failover, 1),
    }


def _writes_per_s(operator: Operator, seconds: float) -> float:
    before = figure(operator, "kvgrove_operator_api_writes_total")
    time.sleep(seconds)
    return round((figure(operator, "kvgrove_operator_api_writes_total") - before) / seconds, 3)


def _purged(
    api: Api, statuses: Statuses, number: int, epoch: int, size: Size, *, seconds: float = _PURGE_SECONDS
) -> float:
    """When that purge of that namespace is confirmed."""
    path = namespace_path(number, size)
    api.merge(path, {"spec": {"purge": {"epoch": epoch}}})
    team, name = f"team-{number % size.teams}", path.rpartition("/")[2]
    return statuses.wait(lambda: purged(statuses.of(team, name), epoch), f"the purge of {name}", seconds)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    parser.add_argument("--namespaces", type=int, default=1000)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--purges", type=int, default=100)
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS")
    found = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # who ends this early ends what it started
    figures = measure(Size(found.namespaces, found.models, found.nodes), found.purges, found.idle)
    if found.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value}")
    return 0
