"""From a service's setup to a front that questions can be asked of; used by the deployment and by tests alike."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.reasoner.engine.args import MESSAGES_WITH_MEDIA
from cosmos3_serve.reasoner.fleet.health import HealthBook
from cosmos3_serve.reasoner.fleet.view import FleetPort
from cosmos3_serve.reasoner.gateway.canary import Canary
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.gateway.line import WaitingLine
from cosmos3_serve.reasoner.gateway.metrics import Figures, ReasonerMetrics
from cosmos3_serve.reasoner.gateway.replica_figures import ReplicaFigures
from cosmos3_serve.reasoner.gateway.salts import TenantSalts
from cosmos3_serve.reasoner.gateway.upstream import Upstream
from cosmos3_serve.reasoner.media.address import AllowList
from cosmos3_serve.reasoner.media.fetch import Fetcher
from cosmos3_serve.reasoner.media.gate import MediaGate
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.picture_cost import ImageProcessor
from cosmos3_serve.reasoner.media.probe import Prober
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder
from cosmos3_serve.reasoner.media.sampling import VideoProcessor
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.reasoner.media.upload_store import UploadStore, upload_place
from cosmos3_serve.reasoner.media.upload_sweep import Bounds
from cosmos3_serve.reasoner.sessions.keys import SessionKeys
from cosmos3_serve.reasoner.sessions.lease import LeaseCache
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Mode, Profile
from cosmos3_serve.reasoner.sessions.router import Router
from cosmos3_serve.reasoner.sessions.suspects import SuspectTracker
from cosmos3_serve.reasoner.setup import ReasonerSetup
from cosmos3_serve.service.readiness import Readiness
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.storage.roots import AllowedRoots

_SALT = b"cosmos3 session keys"
_PACKAGES = ("cosmos3-serve", "ray", "aiohttp", "av")


def assemble(setup: ReasonerSetup, fleet: FleetPort, gateway: str, book: TokenBook) -> Front:
    """
    Args:
        gateway: this process's name among gateways, unlike that of any earlier one.

    Raises:
        StartRefused: no directory for media is set.
        UsageError: roots, allowed hosts, session headers or TTL are malformed.
    """
    settings = setup.settings
    rules = AffinityRules(ttl_s=settings.session_ttl_s, mode=Mode(settings.session_mode))
    suspects, health = SuspectTracker(judge=False), HealthBook()
    leases = LeaseCache(gateway, fleet.table, rules, suspects, health)
    router = Router(Profile(settings.routing), health, leases, suspects)
    limits = media_limits(settings)
    salts = TenantSalts(setup.secret.encode(), shared=settings.share_caches)
    upstream = Upstream(setup.secret, settings.answer_timeout_s, tls=settings.replica_tls)

    async def system() -> Mapping[str, Any]:
        return system_info(front)

    front = Front(
        setup=setup,
        book=book,
        fleet=fleet,
        router=router,
        # Derived: whoever learns a session's salt must not learn what opens the replicas.
        keys=SessionKeys(hmac.digest(setup.secret.encode(), _SALT, "sha256"), settings.session_headers),
        salts=salts,
        gate=media_gate(setup, limits, suspects, salts),
        limits=limits,
        line=WaitingLine(settings.queue_limit, settings.queue_timeout_s),
        upstream=upstream,
        metrics=ReasonerMetrics(),
        replica_figures=ReplicaFigures(upstream),
        readiness=Readiness(),
        system=system,
    )
    front.metrics.watch(lambda: figures(front))
    return front


def media_limits(settings: ReasonerSettings) -> MediaLimits:
    """The gate's limits, as the operator set them. A conversation may repeat its media, as replicas are started for."""
    return MediaLimits(
        max_body_bytes=settings.max_body_bytes,
        videos_per_message=settings.videos_per_message,
        images_per_message=settings.images_per_message,
        videos_per_request=settings.videos_per_message * MESSAGES_WITH_MEDIA,
        images_per_request=settings.images_per_message * MESSAGES_WITH_MEDIA,
        max_media_bytes=settings.max_media_bytes,
        max_request_media_bytes=2 * settings.max_media_bytes,
    )


def media_gate(setup: ReasonerSetup, limits: MediaLimits, suspects: SuspectTracker, salts: TenantSalts) -> MediaGate:
    settings = setup.settings
    if settings.store_dir is None:
        raise StartRefused("no directory for media is set", code="store_missing", remedy="use --store-dir")
    root = settings.store_dir
    videos, pictures = processors(setup.model.path)
    store = MediaStore(root, max_bytes=settings.store_bytes, max_age_s=settings.store_hours * 3600)
    return MediaGate(
        root,
        limits,
        store=store,
        uploads=upload_store(settings, root, store),
        fetcher=Fetcher(
            store,
            limits,
            allow=AllowList.parse(settings.media_allow),
            roots=AllowedRoots.parse(settings.allowed_s3_roots, ReasonerSettings.env_name("allowed_s3_roots") or ""),
        ),
        prober=Prober(limits, ReplicaDecoder()),
        videos=videos,
        pictures=pictures,
        name=salts.media,
        quarantined=lambda sha256: suspects.quarantined(sha256, time.monotonic()),
    )


def upload_store(settings: ReasonerSettings, root: Path, store: MediaStore) -> UploadStore:
    """Uploads on this machine's disk, or in the store that all gateways share."""
    if settings.media_store is None:
        total = settings.store_bytes
        bounds = Bounds(total, min(total, settings.media_store_tenant_bytes))
        return UploadStore(upload_place(f"file://{root.absolute() / 'uploads'}"), store, bounds)
    bounds = Bounds(settings.media_store_bytes, settings.media_store_tenant_bytes)
    return UploadStore(upload_place(settings.media_store), store, bounds)


def processors(checkpoint: Path) -> tuple[VideoProcessor, ImageProcessor]:
    """The checkpoint's; the model family's where its files are on other machines only."""
    try:
        return VideoProcessor.load(checkpoint), ImageProcessor.load(checkpoint)
    except (OSError, ValueError):
        return VideoProcessor(), ImageProcessor()


def add_checks(front: Front, canary: Canary) -> None:
    """What must hold for /ready."""

    def registry() -> tuple[bool, str]:
        away = front.fleet.away
        return not away, "the fleet's registry does not answer" if away else "the fleet's registry answers"

    def replicas() -> tuple[bool, str]:
        fleet = front.router.health.fleet(front.clock())
        serving = sum(view.state in ("ready", "saturated") for view in fleet.replicas.values())
        if not serving and not front.settings.workers.least:  # asleep; the port must stay open for who wakes it
            failing = front.fleet.failing
            return not failing, "replicas cannot start" if failing else "no replica serves: a question starts one"
        quiet = sum(member.quiet is True for member in front.members.values())
        silent = f"; {quiet} of them have work and compute nothing" if quiet else ""
        return serving > quiet, f"{serving} of {front.fleet.wanted} replicas serve{silent}"

    def tokens() -> tuple[bool, str]:
        return not front.book.problem, front.book.problem or f"{len(front.book)} token(s)"

    def open_() -> tuple[bool, str]:
        closing = front.closing or front.fleet.draining
        return not closing, "the service is ending" if closing else "questions are taken"

    def weights() -> tuple[bool, str]:
        model = front.setup.model
        return True, f"{model.checkpoint}, weights {model.weights}"

    for name, check in (
        ("registry", registry),
        ("replicas", replicas),
        ("canary", canary.verdict),
        ("tokens", tokens),
        ("weights", weights),
        ("accepting", open_),
    ):
        front.readiness.add(name, check)


def figures(front: Front) -> Figures:
    now, router = front.clock(), front.router
    states = router.health.fleet(now).replicas
    return Figures(
        waiting=len(front.line),
        wanted=front.fleet.wanted,
        in_flight=front.in_flight,
        body_bytes=front.budget.held,
        store_bytes=front.gate.store.used_bytes,
        leases=len(router.leases),
        retries=router.counters.retries,
        sessions=router.counters.rows(router.leases.expired),
        failures=dict(router.counters.failures),
        replicas={m.replica_id: (states[m.replica_id].state.value, router.health.load(m.ref, now))
                  for m in front.members.values() if m.replica_id in states},
    )  # fmt: skip


def system_info(front: Front) -> dict[str, Any]:
    """What runs where, without addresses of the inside."""
    limits, model = front.limits, front.setup.model
    return {
        "model": model.name,
        "checkpoint": model.checkpoint,
        "checkpoint_revision": model.revision,
        "checkpoint_digest": model.digest,
        "weights": model.weights,
        "max_model_len": model.max_model_len,
        "versions": {name: _version(name) for name in _PACKAGES},
        "replicas": [
            {"id": m.replica_id, "phase": m.phase.value, "max_num_seqs": m.max_num_seqs, "node": m.service.node,
             "engine": dict(m.service.engine)}
            for m in sorted(front.members.values(), key=lambda m: m.replica_id)
        ],
        "limits": {name: getattr(limits, name) for name in ("max_body_bytes", "max_media_bytes", "videos_per_message",
                                                            "images_per_message", "max_request_media_bytes")},
        "queue_limit": front.line.limit,
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
