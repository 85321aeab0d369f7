"""Texts out of ConfigMaps."""

from planning_rig import document, model, namespace

from kvgrove_operator.texts import filled, filled_model, named_by, named_by_model

REFERENCE = {"chatTemplateFrom": {"configMapRef": {"name": "templates", "key": "k"}}}


def test_a_reference_becomes_its_text_and_the_rest_stays() -> None:
    resource = namespace("a", documents=[document("one", text=None), document("two", text="inline")])
    assert named_by(resource) == {("team", "cm")}
    made = filled(resource, {("team", "cm"): {"k": "from the map"}})
    assert [each.text for each in made.spec.documents] == ["from the map", "inline"]


def test_a_text_that_cannot_be_had_or_is_empty_stays_open() -> None:
    resource = namespace("a", documents=[document(text=None)])
    for data in ({}, {("team", "cm"): {}}, {("team", "cm"): {"k": ""}}, {("other", "cm"): {"k": "theirs"}}):
        (found,) = filled(resource, data).spec.documents
        assert found.text is None


def test_a_model_without_its_template_is_not_planned_with_another() -> None:
    resource = model(**REFERENCE).resource
    assert named_by_model(resource, "ops") == {("ops", "templates")}
    assert filled_model(resource, "ops", {}) is None
    made = filled_model(resource, "ops", {("ops", "templates"): {"k": "{{ messages }}"}})
    assert made is not None
    assert made.spec.chat_template_from is not None
    assert made.spec.chat_template_from.inline == "{{ messages }}"
    assert filled_model(model().resource, "ops", {}) == model().resource
