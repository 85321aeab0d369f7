"""Where a ModelVersion's files lie on this machine: the embedded mode's place of volumes and downloads.

A host path is taken as it is; a Hugging Face repository must be in the local cache at that commit already, because
`kvgrove up` fetches nothing on its own; a volume claim has no meaning without a cluster.
"""

from dataclasses import dataclass
from pathlib import Path

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.manifests import Resources, identity
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.sources import HostPathSource, ModelSource, PvcSource
from kvgrove_operator.plan import DesiredModel


@dataclass(frozen=True)
class Found:
    """Models whose files are here, and what is wrong with the others."""

    models: tuple[DesiredModel, ...]
    problems: dict[str, str]
    """Name of the object (see `manifests.identity`) -> what is missing, and the cure."""


def find_files(resources: Resources) -> Found:
    """Look for the files of every model; one that lacks them does not keep the others back."""
    models: list[DesiredModel] = []
    problems: dict[str, str] = {}
    for item in resources.models:
        try:
            tokenizer = tokenizer_path(item)
            models.append(
                DesiredModel(
                    item,
                    str(weights_path(item)),
                    str(tokenizer) if tokenizer is not None else "",
                    tuple(str(path) for path in adapter_paths(item)),
                )
            )
        except UsageProblem as problem:
            problems[identity(item)] = problem.message
    return Found(tuple(models), problems)


def weights_path(model: ModelVersion) -> Path:
    """The directory of the weights; raises UsageProblem that names field and cure."""
    return _directory("spec.source", model.spec.source)


def adapter_paths(model: ModelVersion) -> list[Path]:
    """The directories of its adapters, in the spec's order."""
    return [_directory(f"spec.adapters[{at}].source", adapter.source) for at, adapter in enumerate(model.spec.adapters)]


def _directory(field: str, source: ModelSource) -> Path:
    if source.hugging_face is not None:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 - most fleets do without, and it is slow to import
        from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

        repo, revision = source.hugging_face.repo, source.hugging_face.revision
        try:
            return Path(snapshot_download(repo, revision=revision, local_files_only=True))
        except LocalEntryNotFoundError:
            raise _refused(
                f"{field}.huggingFace",
                f"{repo} at {revision[:12]} is not in the local Hugging Face cache; "
                f"fetch it with `hf download {repo} --revision {revision}`, or use hostPath",
            ) from None
    return _local(field, source.host_path, source.pvc)


def tokenizer_path(model: ModelVersion) -> Path | None:
    """The directory of a tokenizer that replaces the one beside the weights; None: it does not."""
    source = model.spec.tokenizer_from
    return None if source is None else _local("spec.tokenizerFrom", source.host_path, source.pvc)


def _local(field: str, host_path: HostPathSource | None, pvc: PvcSource | None) -> Path:
    if host_path is None:
        claim = "" if pvc is None else f" ({pvc.claim_name})"
        raise _refused(f"{field}.pvc", f"there are no volume claims{claim} without a cluster; use hostPath")
    path = Path(host_path.path)
    if not path.is_dir():
        raise _refused(f"{field}.hostPath.path", f"{path} is not a directory; put the model's files there")
    return path


def _refused(field: str, problem: str) -> UsageProblem:
    return UsageProblem(f"{field}: {problem}", field=field, code="source_missing")
