"""The table of standings, and the diagram that people read."""

import pytest

from kvgrove_operator import standing
from kvgrove_operator.standing import TABLE, Change, Standing, step


def test_the_diagram_is_the_table() -> None:
    assert standing.__doc__ is not None
    lines = [line.split() for line in standing.__doc__.splitlines()]
    changes = next(line[1:] for line in lines if line[:1] == ["standing"])
    drawn = {
        (Standing[line[0]], Change[change]): Standing[after]
        for line in lines
        if line and line[0] in Standing.__members__ and len(line) == 5
        for change, after in zip(changes, line[1:], strict=True)
    }
    assert drawn == {(before, change): after for before, row in TABLE.items() for change, after in row.items()}
    assert len(drawn) == len(Standing) * len(Change)


@pytest.mark.parametrize("before", Standing)
def test_only_an_acknowledgement_confirms(before: Standing) -> None:
    for change in set(Change) - {Change.ACKED}:
        if before is not Standing.CONFIRMED:
            assert step(before, change) is not Standing.CONFIRMED


def test_a_newer_fence_asks_the_confirmed_again() -> None:
    assert step(Standing.CONFIRMED, Change.ISSUED) is Standing.PENDING
