"""The reasons are one closed list with meanings; conditions read back what a newer operator wrote."""

import re

from kvgrove_crds import Condition, ConditionReason


def test_every_reason_has_a_camel_case_name_and_a_sentence() -> None:
    for reason in ConditionReason:
        assert re.fullmatch(r"([A-Z][a-z]+)+", reason), reason
        assert reason.replace("_", "").lower() == reason.name.replace("_", "").lower()
        assert reason.meaning.endswith(".")


def test_meanings_are_distinct() -> None:
    assert len({reason.meaning for reason in ConditionReason}) == len(ConditionReason)


def condition(reason: str) -> Condition:
    text = f'{{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T20:00:00Z", "reason": "{reason}"}}'
    return Condition.model_validate_json(text, strict=True)


def test_a_known_reason_reads_as_the_enum_and_prints_as_written() -> None:
    read = condition("Warming")
    assert read.reason is ConditionReason.WARMING
    assert read.model_dump(mode="json", by_alias=True) == {
        "type": "Ready",
        "status": "True",
        "observedGeneration": 0,
        "lastTransitionTime": "2026-11-29T20:00:00Z",
        "reason": "Warming",
        "message": "",
    }


def test_a_reason_of_a_newer_operator_can_be_read() -> None:
    assert condition("Levitating").reason == "Levitating"
