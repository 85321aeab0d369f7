"""How an operator bears a large fleet, as JSON: see `operator_scale`.

``python bench/operator.py --json``
"""

import os
import sys

if __name__ == "operator":
    # Somebody beside this file asked for Python's own module of that name, which it hides from them.
    beside, kept = os.path.realpath(os.path.dirname(__file__)), sys.path[:]
    sys.path[:] = [each for each in kept if os.path.realpath(each) != beside]
    del sys.modules["operator"]
    import operator

    sys.modules["operator"] = operator
    sys.path[:] = kept
elif __name__ == "__main__":
    from operator_scale import main

    sys.exit(main())
