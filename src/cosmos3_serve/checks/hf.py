"""`hf`: does the Hub know this token? Whether it may fetch the models is `health access`, another question."""

from __future__ import annotations

from collections.abc import Mapping

from cosmos3_serve.checks.report import Row, Status
from cosmos3_serve.checks.web import ask
from cosmos3_serve.weights.hub_env import Hub

NAME = "hf"


async def check_hf(environ: Mapping[str, str], *, offline: bool, timeout_s: float) -> Row:
    """FAIL without a token or when the Hub refuses it, WARN without a clear answer, else PASS.

    The guardrails are gated, so without a token nothing that is guarded can start.

    Raises:
        UsageError: `HF_ENDPOINT` is no http(s) address.
    """
    hub = Hub.from_environ(environ)
    if not hub.token:
        return Row(NAME, Status.FAIL, "HF_TOKEN is not set", "set HF_TOKEN to a token of the account that has access")
    if offline or hub.offline:
        why = "--offline" if offline else "HF_HUB_OFFLINE is set"
        return Row(NAME, Status.SKIP, f"HF_TOKEN is set; the Hub was not asked ({why})")
    reply = await ask(f"{hub.endpoint}/api/whoami-v2", timeout_s=timeout_s, bearer=hub.token)
    if reply.status in (401, 403):
        return Row(
            NAME, Status.FAIL, f"the Hub refuses this token (HTTP {reply.status})",
            "it is wrong, expired or revoked: make a new one in the account's settings and set HF_TOKEN",
        )  # fmt: skip
    if reply.status == 200 and isinstance(reply.body.get("name"), str):
        return Row(NAME, Status.PASS, "the Hub knows this token", details=("access to a model: health access",))
    trouble = reply.trouble or f"HTTP {reply.status}"
    if reply.status == 200:
        trouble = "what answered is not the Hub"
    return Row(NAME, Status.WARN, f"not known: {trouble}", "check the network, the proxy and HF_ENDPOINT")
