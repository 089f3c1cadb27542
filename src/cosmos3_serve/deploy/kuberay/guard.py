"""Network policy and disruption budgets: who may reach the pods, what they may reach, how many may go at once."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from cosmos3_serve.deploy.kube.base import Meta
from cosmos3_serve.deploy.kube.base import labels as meta_labels
from cosmos3_serve.deploy.kube.objects import (
    DisruptionSpec,
    Egress,
    Ingress,
    IpBlock,
    NetworkPolicy,
    NetworkPolicySpec,
    Peer,
    PodDisruptionBudget,
    PolicyPort,
    Selector,
)
from cosmos3_serve.deploy.kuberay.applications import PORT, pods
from cosmos3_serve.deploy.kuberay.pods import INSTANCE, labels
from cosmos3_serve.deploy.kuberay.values import KuberayValues, Service

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
DASHBOARD, VIDEO_PORT = 8265, 8080


def network_policy(service: Service, name: str, values: KuberayValues) -> NetworkPolicy:
    """An allow-list in both directions. Anything not named is closed, including Ray's own ports to other pods."""
    network = values.network
    own = Peer(pod_selector=Selector(match_labels={INSTANCE: name}))
    clients = [Peer(pod_selector=Selector(match_labels=network.client_labels))]
    for namespace in filter(None, (network.client_namespace, values.ingress.controller_namespace)):
        clients.append(_namespace(namespace))
    outside = [
        Peer(ip_block=IpBlock.model_validate({"cidr": cidr, "except": _within(cidr, network.egress_except)}))
        for cidr in network.egress_cidrs
    ] + [Peer(ip_block=IpBlock(cidr=cidr)) for cidr in network.private_cidrs]
    ports = [
        PolicyPort.model_validate({"port": port, "protocol": protocol})
        for port, _, protocol in (each.partition("/") for each in network.egress_ports)
    ]
    egress = [
        Egress(to=[own]),
        Egress(to=[_namespace(each) for each in network.dns_namespaces], ports=_both(network.dns_ports)),
    ]
    if network.dns_cidrs:
        egress.append(Egress(to=[Peer(ip_block=IpBlock(cidr=each)) for each in network.dns_cidrs], ports=_both((53,))))
    if outside:
        egress.append(Egress(to=outside, ports=ports))
    if service == "reasoner":  # the clips of our own smoke and perf jobs
        jobs = Peer(pod_selector=Selector(match_labels={"app.kubernetes.io/component": "perf"}))
        egress.append(Egress(to=[jobs], ports=[PolicyPort(port=VIDEO_PORT)]))
    return NetworkPolicy(
        metadata=Meta(name=name, labels=meta_labels(name, "network")),
        spec=NetworkPolicySpec(
            pod_selector=Selector(match_labels={INSTANCE: name}),
            ingress=[
                Ingress.model_validate({"from": [own]}),
                Ingress.model_validate({"from": clients, "ports": [PolicyPort(port=PORT)]}),
                Ingress.model_validate(
                    {"from": [_namespace(network.operator_namespace)], "ports": [PolicyPort(port=DASHBOARD)]}
                ),
            ],
            egress=egress,
        ),
    )


def disruption_budgets(name: str, values: KuberayValues) -> list[PodDisruptionBudget]:
    """One for the head, whose end is the service's, and one for the workers. Every pod drains before it ends.

    The pods belong to a RayCluster, which has no `scale` to read a wanted number from: for such owners Kubernetes takes
    a whole `minAvailable` alone. So the number is counted here, from the most workers that there may be: with fewer, a
    drain waits rather than takes too many.
    """
    most = pods(values)[1]
    kept = {"head": int(values.disruption.hold_head), "worker": max(0, most - values.disruption.max_unavailable)}
    return [
        PodDisruptionBudget(
            metadata=Meta(name=f"{name}-{role}", labels=meta_labels(name, "disruption")),
            spec=DisruptionSpec(min_available=number, selector=Selector(match_labels=labels(name, role))),
        )
        for role, number in kept.items()
    ]


def _namespace(name: str) -> Peer:
    return Peer(namespace_selector=Selector(match_labels={NAMESPACE_LABEL: name}))


def _both(ports: Iterable[int]) -> list[PolicyPort]:
    """DNS speaks UDP, and TCP where an answer is long."""
    return [PolicyPort.model_validate({"port": port, "protocol": each}) for port in ports for each in ("UDP", "TCP")]


def _within(cidr: str, excepted: tuple[str, ...]) -> list[str] | None:
    """Kubernetes refuses an exception that does not lie within the block."""
    block = ipaddress.ip_network(cidr)
    found = [
        each
        for each in excepted
        if (one := ipaddress.ip_network(each)).version == block.version and one != block and one.subnet_of(block)  # type: ignore[arg-type]
    ]
    return found or None
