"""Hours of a node's life in minutes, as JSON: random load with failures on a real daemon, and what must hold.

``python bench/soak.py --json [--seconds 600] [--seed N]`` starts a daemon with a tiny model, a pool and a disk tier far
too small for what is asked of them, and lets tenants and users ask, cancel and vanish, while namespaces are purged,
erased and replaced, documents change, leases and disks fail, other processes borrow blocks and die, and the daemon is
killed. Whenever the load pauses, and at the end:

- nothing is pinned: no lease, build, loan, load, copy or quarantined slot is left (``pinned_at_pauses``);
- bytes that are accounted for are those that are there: the pool's segment, the disk's files (``bytes_at_end``). While
  a disk that failed just now rests, under a named reason, files may still wait to be cleared; not at the end;
- every tier is proven whole (`cache.debug.check`);

and over the whole time

- no answer differs from a cold run of the same prompt, and no request reuses what nobody left for its caller;
- memory, descriptors and threads do not grow after the first minute of the last life (``growth``: medians of the
  middle and the last third, with the margin that is allowed);
- every erasure is proven, and no segment of shared memory is left behind (``segments_left``).

``broken`` lists each promise that was broken, and how often; the exit status is 1 unless it is empty. With the seed of
an earlier run the same events are drawn, as far as timing lets them come in the same order.
"""

import argparse
import json
import logging
import os
import secrets
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the daemon; before torch loads OpenMP
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # the rig is the tests' own

from soak_run import Soak
from tiny_models import cached_tiny_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="of load; boots and pauses come on top (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run (default: a new one)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    say = logging.getLogger("soak").info
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    say("seed %d, %d s of load", seed, arguments.seconds)
    with tempfile.TemporaryDirectory(prefix="kvgrove-soak-") as root:
        model = cached_tiny_model("llama")
        report = Soak(model, Path(root), seed=seed, seconds=arguments.seconds, say=say).run()
    if arguments.json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        for name, value in report.items():
            print(f"{name:20} {value}")
    return 1 if report["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
