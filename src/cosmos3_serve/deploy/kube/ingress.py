"""The Ingress of Kubernetes' own API: one host, TLS, one Service behind it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cosmos3_serve.deploy.kube.base import KubeModel, KubeObject


class BackendPort(KubeModel):
    number: int = Field(ge=1, le=65535)


class BackendService(KubeModel):
    name: str
    port: BackendPort


class Backend(KubeModel):
    service: BackendService


class HttpPath(KubeModel):
    path: str
    path_type: Literal["Exact", "Prefix"]
    backend: Backend


class HttpPaths(KubeModel):
    paths: list[HttpPath]


class HostRule(KubeModel):
    host: str
    http: HttpPaths


class HostTls(KubeModel):
    hosts: list[str]
    secret_name: str


class HostIngressSpec(KubeModel):
    ingress_class_name: str | None = None
    tls: list[HostTls]
    rules: list[HostRule]


class HostIngress(KubeObject):
    api_version: Literal["networking.k8s.io/v1"] = "networking.k8s.io/v1"
    kind: Literal["Ingress"] = "Ingress"
    spec: HostIngressSpec
