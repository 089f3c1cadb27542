"""CaBundle: authorities of an operator's own, for pods that speak TLS with what they signed."""

from __future__ import annotations

from cosmos3_serve.deploy.fields import Name
from cosmos3_serve.deploy.kube.pod import ConfigMapSource, EnvVar, Mount, Volume, env
from cosmos3_serve.deploy.values import Values, value

FOLDER = "/etc/cosmos3-ca"
VOLUME = "ca-bundle"
# Who reads which: Python's ssl, httpx, obstore and the Hub's clients the first; requests and pip; AWS' own tools.
VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")


class CaBundle(Values):
    config_map: Name | None = value(
        None, "ConfigMap with certificates (PEM) that pods trust, in place of the image's: include the public ones."
    )
    key: str = value("ca.crt", "Its key.", pattern=r"^[-._a-zA-Z0-9]+$")


def trust_env(bundle: CaBundle) -> list[EnvVar]:
    return env(**dict.fromkeys(VARIABLES, f"{FOLDER}/{bundle.key}")) if bundle.config_map else []


def trust_mounts(bundle: CaBundle) -> list[Mount]:
    return [Mount(name=VOLUME, mount_path=FOLDER, read_only=True)] if bundle.config_map else []


def trust_volumes(bundle: CaBundle) -> list[Volume]:
    return [Volume(name=VOLUME, config_map=ConfigMapSource(name=bundle.config_map))] if bundle.config_map else []
