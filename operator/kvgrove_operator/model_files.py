"""Where members find the files of a ModelVersion: the same path on every node. Pure.

A Hugging Face source is the snapshot of its commit in the cache below the model root of each node; whoever fills that
cache (an image, a volume, ``hf download``), the daemons say what they found there. A host path is taken as it is, a
volume claim is mounted below one folder.
"""

from typing import Any

from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.sources import HostPathSource, ModelSource, PvcSource, TokenizerSource
from kvgrove_operator.generations import DesiredModel

VOLUMES = "/var/lib/kvgrove/volumes"
"""Where volume claims are mounted in the Pods of daemons."""

Object = dict[str, Any]


def desired_model(model: ModelVersion, model_root: str, placement: str) -> DesiredModel:
    """``model`` with the paths of its files. ``model_root``: directory of every node that holds it."""
    source, tokenizer = model.spec.source, model.spec.tokenizer_from
    return DesiredModel(
        model,
        _directory(source, model_root),
        _path(tokenizer.host_path, tokenizer.pvc) if tokenizer is not None else "",
        tuple(_directory(adapter.source, model_root) for adapter in model.spec.adapters),
        placement,
    )


def volumes_of(model: ModelVersion, model_root: str) -> dict[str, Object]:
    """Mount path -> the volume that daemons need for this model, beside the model root."""
    needed: dict[str, Object] = {}
    sources: list[ModelSource | TokenizerSource] = [
        model.spec.source,
        *(adapter.source for adapter in model.spec.adapters),
    ]
    if model.spec.tokenizer_from is not None:
        sources.append(model.spec.tokenizer_from)
    for source in sources:
        if source.pvc is not None:
            claim = source.pvc.claim_name
            needed[f"{VOLUMES}/{claim}"] = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        elif source.host_path is not None and not _below(source.host_path.path, model_root):
            needed[source.host_path.path] = {"hostPath": {"path": source.host_path.path, "type": "Directory"}}
    return needed


def _directory(source: ModelSource, model_root: str) -> str:
    if source.hugging_face is not None:
        owner, _, name = source.hugging_face.repo.partition("/")
        return f"{model_root}/hub/models--{owner}--{name}/snapshots/{source.hugging_face.revision}"
    return _path(source.host_path, source.pvc)


def _path(host_path: HostPathSource | None, pvc: PvcSource | None) -> str:
    if pvc is not None:
        return f"{VOLUMES}/{pvc.claim_name}/{pvc.path}".rstrip("/")
    return host_path.path if host_path is not None else ""


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")
