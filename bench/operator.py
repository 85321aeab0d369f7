"""How an operator bears a large fleet, as JSON: see `operator_scale`.

``python bench/operator.py --json``
"""

import sys

if __name__ == "operator":
    # Somebody beside this file asked for Python's own module of that name, which it hides from them.
    beside = __file__.rpartition("/")[0]
    kept = sys.path[:]
    sys.path[:] = [each for each in kept if each not in ("", beside)]
    del sys.modules["operator"]
    import operator

    sys.modules["operator"] = operator
    sys.path[:] = kept
elif __name__ == "__main__":
    from operator_scale import main

    sys.exit(main())
