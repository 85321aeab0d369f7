"""Fills in the texts that resources keep in ConfigMaps. Pure.

A text that cannot be had stays None: planning then keeps what was in force. Reading is somebody else's; here is only
which ConfigMaps are named, and where their keys go.
"""

from collections.abc import Mapping

from kvgrove_crds.model_identity import ChatTemplateSource
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.namespace_content import DocumentSpec, PrefixSpec

Name = tuple[str, str]
"""Kubernetes namespace and name of a ConfigMap."""
Data = Mapping[Name, Mapping[str, str]]
"""Of the ConfigMaps that exist."""


def named_by(resource: PromptCacheNamespace) -> set[Name]:
    """The ConfigMaps that ``resource`` needs."""
    contents: tuple[PrefixSpec | DocumentSpec, ...] = (*resource.spec.prefixes, *resource.spec.documents)
    return {
        (resource.namespace, each.config_map_key_ref.name) for each in contents if each.config_map_key_ref is not None
    }


def named_by_model(model: ModelVersion, own_namespace: str) -> set[Name]:
    source = model.spec.chat_template_from
    return set() if source is None or source.config_map_ref is None else {(own_namespace, source.config_map_ref.name)}


def filled(resource: PromptCacheNamespace, data: Data) -> PromptCacheNamespace:
    """``resource`` with texts in place of references, as far as they are there."""
    if not named_by(resource):
        return resource
    prefixes = tuple(_prefix(each, resource.namespace, data) for each in resource.spec.prefixes)
    documents = tuple(_document(each, resource.namespace, data) for each in resource.spec.documents)
    spec = resource.spec.model_copy(update={"prefixes": prefixes, "documents": documents})
    return resource.model_copy(update={"spec": spec})


def filled_model(model: ModelVersion, own_namespace: str, data: Data) -> ModelVersion | None:
    """The same for a template; None where it cannot be had: another one in its place would give other answers."""
    source = model.spec.chat_template_from
    if source is None or source.config_map_ref is None:
        return model
    text = data.get((own_namespace, source.config_map_ref.name), {}).get(source.config_map_ref.key)
    if not text:
        return None
    inline = ChatTemplateSource.model_construct(inline=text, config_map_ref=None)
    return model.model_copy(update={"spec": model.spec.model_copy(update={"chat_template_from": inline})})


def _prefix(content: PrefixSpec, namespace: str, data: Data) -> PrefixSpec:
    text = _text(content, namespace, data)
    return content if text is None else content.model_copy(update={"text": text, "config_map_key_ref": None})


def _document(content: DocumentSpec, namespace: str, data: Data) -> DocumentSpec:
    text = _text(content, namespace, data)
    return content if text is None else content.model_copy(update={"text": text, "config_map_key_ref": None})


def _text(content: PrefixSpec | DocumentSpec, namespace: str, data: Data) -> str | None:
    reference = content.config_map_key_ref
    if reference is None:
        return None
    return data.get((namespace, reference.name), {}).get(reference.key) or None
