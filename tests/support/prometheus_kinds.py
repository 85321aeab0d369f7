"""The kinds of the Prometheus operator by their names alone: what their content is worth, promtool says."""

from __future__ import annotations

import json

KINDS = ("PodMonitor", "PrometheusRule")

DEFINITIONS = "---\n".join(
    json.dumps(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()},
                "scope": "Namespaced",
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                ],
            },
        }
    )
    + "\n"
    for kind in KINDS
)
"""CustomResourceDefinitions that take any content."""
