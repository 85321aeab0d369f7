"""How soon gateways know again what the nodes hold, with members coming and going, as JSON.

``python bench/fleet_index.py --json`` starts three daemons with a tiny model and two gateways as processes, lets
callers go on talking, kills a daemon, brings it back, and restarts a gateway. It prints

- ``index_equal_after_s``: for each event, seconds until every gateway has found its index equal to the listing of every
  node that is there, by count and digest. Counted from: 20 answers (``load``), the plan without the daemon
  (``daemon_killed``), its first word to the planner (``daemon_back``), the gateway's readiness (``gateway_back``), the
  last answer (``end``). Nodes tell their listing at least once a second, so up to a second is waiting for that;
- ``worst_s``: the longest of them;
- ``answered``, ``failed_requests``, ``retried_requests`` (by callers: a node was lost while it answered) and
  ``gateway_retries`` (made by gateways, unseen by callers).
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the daemon; before torch loads OpenMP
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # the rig is the tests' own

from fleet_index_rig import run, three_nodes
from tiny_models import cached_tiny_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kvgrove-fleet-") as folder,
        three_nodes(Path(folder), cached_tiny_model("llama")) as fleet,
    ):
        found = run(fleet)
    figures = {
        "index_equal_after_s": {event: round(seconds, 3) for event, seconds in found.index_equal_after_s.items()},
        "worst_s": round(max(found.index_equal_after_s.values()), 3),
        "answered": found.answered,
        "failed_requests": len(found.failures),
        "retried_requests": found.retried_requests,
        "gateway_retries": found.gateway_retries,
    }
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value}")
    return 0 if not found.failures else 1


if __name__ == "__main__":
    sys.exit(main())
