"""What the programs of a control plane are told: addresses, keys and flags. Pure but for `Settings.prepare`."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from controlplane.component import Component, Probe
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from ports import LOOPBACK, free_ports

# A hundred simulated nodes and a thousand objects: at the controllers' usual 20 requests a second, tests would wait.
_CONTROLLER_QPS, _CONTROLLER_BURST = 300, 600
# How long a Node may be silent before it is NotReady. Well above a renewal that a busy machine delays.
NODE_GRACE_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one control plane, in one folder."""

    work: Path
    programs: Path
    token: str
    etcd_port: int
    peer_port: int
    api_port: int
    controllers_port: int
    scheduler_port: int

    @classmethod
    def fresh(cls, work: Path, programs: Path) -> Settings:
        return cls(work, programs, secrets.token_hex(16), *free_ports(5))

    @property
    def server(self) -> str:
        return f"https://{LOOPBACK}:{self.api_port}"

    @property
    def kubeconfig(self) -> Path:
        return self.work / "kubeconfig"

    @property
    def etcd_data(self) -> Path:
        return self.work / "etcd"

    @property
    def certificate(self) -> Path:
        """Of the API server, with its authority; it makes both on its first start."""
        return self.work / "certificates" / "apiserver.crt"

    def prepare(self) -> None:
        """Writes what the programs read: the token of the administrator, the key of service accounts' tokens."""
        self.work.mkdir(parents=True, exist_ok=True)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        for name, content in (
            ("service-accounts.key", pem),
            ("tokens.csv", f"{self.token},admin,admin,system:masters\n".encode()),
        ):
            file = self.work / name
            file.touch(mode=0o600)
            file.write_bytes(content)
        self.write_kubeconfig(self.kubeconfig, user="admin", token=self.token)

    def write_kubeconfig(self, file: Path, *, user: str, token: str, namespace: str = "default") -> None:
        """A kubeconfig (JSON is YAML) by which ``user`` reaches the API server."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "kvgrove-tests",
            "clusters": [
                {
                    "name": "kvgrove-tests",
                    "cluster": {"server": self.server, "certificate-authority": str(self.certificate)},
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [
                {
                    "name": "kvgrove-tests",
                    "context": {"cluster": "kvgrove-tests", "user": user, "namespace": namespace},
                }
            ],
        }
        file.touch(mode=0o600)
        file.write_text(json.dumps(config, indent=2))

    def components(self, *, tied: bool) -> list[Component]:
        """In the order in which they start."""
        key = self.work / "service-accounts.key"
        certificates = f"--cert-dir={self.certificate.parent}"
        client, peer = f"http://{LOOPBACK}:{self.etcd_port}", f"http://{LOOPBACK}:{self.peer_port}"

        def component(name: str, flags: list[str], probe: Probe) -> Component:
            command = [str(self.programs / name), *flags]
            return Component(name, command, probe, self.work / f"{name}.log", tied)

        return [
            component(
                "etcd",
                [
                    "--name=default",
                    f"--data-dir={self.etcd_data}",
                    "--unsafe-no-fsync",  # survives a killed process, which is what tests do, not a power cut
                    "--log-level=warn",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster=default={peer}",
                ],
                Probe(f"{client}/readyz"),
            ),
            component(
                "kube-apiserver",
                [
                    f"--etcd-servers={client}",
                    certificates,
                    f"--bind-address={LOOPBACK}",
                    f"--advertise-address={LOOPBACK}",
                    f"--secure-port={self.api_port}",
                    "--service-account-issuer=https://kubernetes.default.svc",
                    f"--service-account-key-file={key}",
                    f"--service-account-signing-key-file={key}",
                    "--service-cluster-ip-range=10.0.0.0/16",
                    f"--token-auth-file={self.work / 'tokens.csv'}",
                    "--authorization-mode=RBAC",
                    "--allow-privileged=true",
                    "--shutdown-delay-duration=0s",
                ],
                Probe(f"{self.server}/readyz", self.token),
            ),
            component(
                "kube-controller-manager",
                [
                    f"--kubeconfig={self.kubeconfig}",
                    certificates,
                    f"--service-account-private-key-file={key}",
                    f"--root-ca-file={self.certificate}",
                    "--use-service-account-credentials=false",
                    "--leader-elect=false",
                    f"--bind-address={LOOPBACK}",
                    f"--secure-port={self.controllers_port}",
                    f"--kube-api-qps={_CONTROLLER_QPS}",
                    f"--kube-api-burst={_CONTROLLER_BURST}",
                    f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
                    "--node-monitor-period=2s",
                ],
                Probe(f"https://{LOOPBACK}:{self.controllers_port}/healthz"),
            ),
            component(
                "kube-scheduler",
                [
                    f"--kubeconfig={self.kubeconfig}",
                    "--leader-elect=false",
                    certificates,
                    f"--bind-address={LOOPBACK}",
                    f"--secure-port={self.scheduler_port}",
                ],
                Probe(f"https://{LOOPBACK}:{self.scheduler_port}/healthz"),
            ),
        ]
