"""The demo's manifests: one folder, rewritten as the story goes on, and left behind for the reader to go on with."""

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from kvgrove_cli.demo import texts
from kvgrove_cli.durable import write_atomically
from kvgrove_cli.errors import UsageProblem

NAMESPACE = "shop/assistant"
PREFIX = "support"
FIRST_MODEL, SECOND_MODEL = "assistant-v1", "assistant-v2"

_MODEL = """\
apiVersion: kvgrove.dev/v1alpha1
kind: ModelVersion
metadata:
  name: {name}
spec:
  source:
    hostPath:
      path: {path}
  pool:
    host: 1Gi
"""
_TEMPLATE = """\
  chatTemplateFrom:
    inline: |
{template}
"""
_NAMESPACE = """\
apiVersion: kvgrove.dev/v1alpha1
kind: PromptCacheNamespace
metadata:
  namespace: shop
  name: assistant
spec:
  modelVersionRef:
    name: {model}
  isolation: Tenant
  prefixes:
  - name: support
    version: v1
    text: |
{system}
    documents: [shipping, repairs, returns]
  documents:
  - name: shipping
    version: v1
    configMapKeyRef: {{name: policies, key: shipping}}
  - name: repairs
    version: v1
    configMapKeyRef: {{name: policies, key: repairs}}
  - name: returns
    version: {version}
    configMapKeyRef: {{name: policies, key: returns}}
  warmup:
    prefixes: [{warm}]
  rollout:
    steps: [{{weight: 100}}]
"""
_DOCUMENTS = """\
apiVersion: v1
kind: ConfigMap
metadata:
  namespace: shop
  name: policies
data:
  shipping: |
{shipping}
  repairs: |
{repairs}
  returns: |
{returns}
"""


@dataclass(frozen=True)
class Scene:
    """What the manifests say at one point of the story."""

    model_path: Path
    model: str = FIRST_MODEL
    second_model: bool = False
    returns_version: int = 1
    warm: bool = False

    def files(self) -> dict[str, str]:
        """File name -> YAML."""
        models = [_MODEL.format(name=FIRST_MODEL, path=json.dumps(str(self.model_path)))]
        if self.second_model:
            template = indent(revised_template(self.model_path), " " * 6)
            models.append(
                _MODEL.format(name=SECOND_MODEL, path=json.dumps(str(self.model_path)))
                + _TEMPLATE.format(template=template)
            )
        returns = texts.returns(str(self.returns_version), days=30 if self.returns_version == 1 else 14, fee=25)
        return {
            "models.yaml": "---\n".join(models),
            "assistant.yaml": _NAMESPACE.format(
                model=self.model,
                system=indent(texts.SYSTEM.rstrip(), " " * 6),
                version=f"v{self.returns_version}",
                warm=PREFIX if self.warm else "",
            ),
            "policies.yaml": _DOCUMENTS.format(
                shipping=indent(texts.SHIPPING.rstrip(), " " * 4),
                repairs=indent(texts.REPAIRS.rstrip(), " " * 4),
                returns=indent(returns.rstrip(), " " * 4),
            ),
        }

    def write(self, folder: Path) -> None:
        """Each file whole; a reader in between may see a mix, which the last write ends."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files().items():
            write_atomically(folder / name, text.encode(), mode=0o644)


def revised_template(model_path: Path) -> str:
    """The model's own chat template with a comment in front: other bytes, hence another digest and generation."""
    beside = model_path / "chat_template.jinja"
    if beside.is_file():
        template = beside.read_text()
    else:
        try:
            template = json.loads((model_path / "tokenizer_config.json").read_text()).get("chat_template")
        except (OSError, ValueError):
            template = None
    if not isinstance(template, str) or not template:
        raise UsageProblem(
            f"--model: {model_path} has no chat template; choose an instruction-tuned model", field="model"
        )
    return "{#- second revision -#}\n" + template
