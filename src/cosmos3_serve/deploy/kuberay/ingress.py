"""An Ingress with TLS in front of a RayService, for callers outside the cluster."""

from __future__ import annotations

from cosmos3_serve.deploy.kube.base import Meta, labels
from cosmos3_serve.deploy.kube.ingress import (
    Backend,
    BackendPort,
    BackendService,
    HostIngress,
    HostIngressSpec,
    HostRule,
    HostTls,
    HttpPath,
    HttpPaths,
)
from cosmos3_serve.deploy.kuberay.applications import PORT
from cosmos3_serve.deploy.kuberay.values import KuberayValues


def serve_service(name: str) -> str:
    """Name of the Service that KubeRay's operator makes for a RayService."""
    return f"{name}-serve-svc"


def tls_ingress(name: str, values: KuberayValues) -> HostIngress:
    """Every path of one host; plain HTTP is left to the controller, whose annotation decides about redirects."""
    ingress = values.ingress
    backend = Backend(service=BackendService(name=serve_service(name), port=BackendPort(number=PORT)))
    path = HttpPath(path="/", path_type="Prefix", backend=backend)
    return HostIngress(
        metadata=Meta(name=name, labels=labels(name, "ingress"), annotations=dict(ingress.annotations) or None),
        spec=HostIngressSpec(
            ingress_class_name=ingress.class_name,
            tls=[HostTls(hosts=[ingress.host], secret_name=ingress.tls_secret or f"{name}-tls")],
            rules=[HostRule(host=ingress.host, http=HttpPaths(paths=[path]))],
        ),
    )
