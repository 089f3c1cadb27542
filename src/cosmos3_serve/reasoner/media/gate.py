"""MediaGate: the way of every video and image into the service.

    MediaPart ── bytes into the store ── quarantined? ── probed? ── normalised? ── within the request's budgets? ── item

Nothing is fetched twice at once, nothing is probed twice, and nothing reaches a replica that did not pass.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import Cosmos3Error, FieldError, InputError
from cosmos3_serve.media.refusal import Refused, broken, too_large
from cosmos3_serve.media.sniff import HEAD_BYTES, Kind, check_declared, sniff
from cosmos3_serve.reasoner.gateway.held_media import media_uuid
from cosmos3_serve.reasoner.media.blobs import Blob, check_disk
from cosmos3_serve.reasoner.media.dataurl import decode, decoded_size
from cosmos3_serve.reasoner.media.fetch import Fetcher
from cosmos3_serve.reasoner.media.file_record import FileRecord
from cosmos3_serve.reasoner.media.frame_options import FrameRule
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.item import Admitted, MediaItem
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.options import with_frames
from cosmos3_serve.reasoner.media.parts import DataSource, FileSource, MediaPart
from cosmos3_serve.reasoner.media.picture_cost import ImageProcessor, PictureCost, picture_cost
from cosmos3_serve.reasoner.media.probe import Prober
from cosmos3_serve.reasoner.media.sampling import Sampling, VideoProcessor, sample_video
from cosmos3_serve.reasoner.media.screen import Screen
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.reasoner.media.upload_store import UploadStore


class MediaGate:
    """
    Args:
        root: directory of the store, also for verdicts and copies in the making.
        videos, pictures: the model's processors, to know what an item costs.
        name: an item's name in the engines' caches, from the tenant and `media_uuid`.
        quarantined: whether a content has killed a replica (asked for each use).
    """

    def __init__(
        self,
        root: Path,
        limits: MediaLimits,
        *,
        store: MediaStore,
        uploads: UploadStore,
        fetcher: Fetcher,
        prober: Prober,
        videos: VideoProcessor,
        pictures: ImageProcessor,
        name: Callable[[str, str], str],
        quarantined: Callable[[str], bool] = lambda sha256: False,
    ) -> None:
        self._root, self._limits, self._quarantined, self._name = root, limits, quarantined, name
        self._videos, self._pictures = videos, pictures
        self.store, self.uploads = store, uploads
        self.screen = Screen(root, store, prober)
        self._fetcher, self._prober = fetcher, prober

    async def start(self) -> None:
        """Check the disk and take in what an earlier life left.

        Raises:
            StartRefused: code `store_unusable`: the file system has no locks, or no room for one video.
        """
        await asyncio.to_thread(check_disk, self._root, self._limits.max_media_bytes)
        await asyncio.to_thread(self.store.open)
        await self.uploads.open()
        await asyncio.to_thread(self.screen.open)

    async def close(self) -> None:
        self._fetcher.close()
        await self._prober.close()

    async def sweep(self) -> None:
        """Drop what is too old, and count what other gateways of this machine wrote; call every minute or so."""
        await asyncio.to_thread(self.store.sweep)
        await self.uploads.sweep()

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def admit(self, parts: Sequence[MediaPart], tenant: str) -> Admitted:
        """Let the media of one request in, or say which part is not let in and why.

        Raises:
            InputError: 400, 404, 413, 415 or 422; `errors[0].field` is the part.
            NotReady: 503 `media_busy` or `media_store_full`.
            StorageFailure, ServiceFailure: our side broke.
        """
        self._check_announced(parts)
        admitted = Admitted()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._attempt(part, tenant, admitted.blobs)) for part in parts]
            for task in tasks:
                result = task.result()
                if isinstance(result, Exception):
                    raise result
                admitted.items.append(result)
            self._name_all(parts, admitted, tenant)
            total = sum(item.size for item in admitted)
            if total > self._limits.max_request_media_bytes:
                raise self._too_much(total).as_error(parts[-1].param)
        except BaseException:
            admitted.release()
            raise
        return admitted

    def _check_announced(self, parts: Sequence[MediaPart]) -> None:
        total = 0
        for part in parts:
            total += decoded_size(part.source) if isinstance(part.source, DataSource) else 0
            if total > self._limits.max_request_media_bytes:
                raise self._too_much(total).as_error(part.param)

    def _too_much(self, total: int) -> Refused:
        limit = self._limits.max_request_media_bytes
        return too_large("media_too_large", f"the request's media are {total} bytes, more than {limit}", "send less")

    async def _attempt(self, part: MediaPart, tenant: str, blobs: list[Blob]) -> MediaItem | Exception:
        """A failure is a result: the first part's is told, however the others end."""
        try:
            return await self._admit(part, tenant, blobs)
        except Refused as refused:
            return refused.as_error(part.param)
        except InputError as error:
            # A new one: the same failure may be another request's too, at another place.
            found = (FieldError(part.param, error.detail, error.remedy),)
            return type(error)(error.detail, remedy=error.remedy, code=error.stable_code, errors=found)
        except Cosmos3Error as error:
            return error

    async def _admit(self, part: MediaPart, tenant: str, blobs: list[Blob]) -> MediaItem:
        """`blobs`: the request's, which stay in use until it ends, well or not."""
        original = await self._bring(part, tenant)
        blobs.append(original)
        self._check_quarantine(original.sha256)
        verdict = await self.screen.judge(original, part.kind, tenant)
        assert verdict.info is not None
        if isinstance(part.source, DataSource):
            check_declared(part.source.mime, verdict.info.mime)
        info, served = verdict.info, original
        if verdict.served is not None:
            served, info = await self.screen.copy(original, part.kind, verdict, tenant)
            blobs.append(served)
        cost, options = self._cost(part, info)
        return MediaItem(
            kind=part.kind,
            where=part.where,
            turns=part.turns,
            sha256=original.sha256,
            mime=info.mime,
            size=served.size,
            path=served.path,
            info=info,
            original=verdict.info if verdict.served else None,
            options=options,
            uuid="",
            cost=cost,
            source=part.source if isinstance(part.source, DataSource) and not verdict.served else None,
        )

    async def _bring(self, part: MediaPart, tenant: str) -> Blob:
        """The part's content, in the store and in use. Types that web servers declare are not believed, nor refused."""
        source = part.source
        if isinstance(source, DataSource):
            return await asyncio.to_thread(self._keep, source)
        if isinstance(source, FileSource):
            return (await self.uploads.pin(tenant, source.file_id))[1]
        return (await self._fetcher.fetch(source, tenant))[1]

    def _keep(self, source: DataSource) -> Blob:
        data = decode(source, self._limits.max_media_bytes)
        return self.store.put(data, hashlib.sha256(data).hexdigest())

    def _check_quarantine(self, sha256: str) -> None:
        if self._quarantined(sha256):
            raise broken("media_quarantined", "this content has stopped a replica and is not taken", "re-encode it")

    def _name_all(self, parts: Sequence[MediaPart], admitted: Admitted, tenant: str) -> None:
        """Give the items the names that replicas cache them by.

        A replica mixes a request's options into the name, so what it is sent must be the same for the same frames:
        nothing where they are the model's own choice, else their number, else (several numbers) the rule.
        """
        pairs = list(zip(admitted.items, parts, strict=True))
        admitted.loading = self._loading([(item, part) for item, part in pairs if item.kind == "video"])
        for number, (item, part) in enumerate(pairs):
            options = with_frames(part.options, admitted.loading) if item.kind == "video" else part.options
            recipe = {"recipe": self._prober.recipe} if item.original is not None else {}
            uuid = self._name(tenant, media_uuid(item.kind, item.sha256, {**options, **recipe}))
            admitted.items[number] = replace(item, options=options, uuid=uuid)

    def _loading(self, videos: Sequence[tuple[MediaItem, MediaPart]]) -> Mapping[str, Any]:
        rules, counts, usual = [], set[int](), True
        for item, part in videos:
            if part.frames is not None and isinstance(item.cost, Sampling):
                rules.append(part.frames.rule(item.info))
                counts.add(len(item.cost.indices))
                usual = usual and item.cost.indices == sample_video(item.info, self._videos, part.options).indices
        if usual:
            return {}
        rule = FrameRule(None, *counts, *counts) if len(counts) == 1 else rules[0]  # a request has one rule for all
        return rule.as_options()

    def _cost(self, part: MediaPart, info: MediaInfo) -> tuple[Sampling | PictureCost, Mapping[str, Any]]:
        """What the part costs, and the options that it takes.

        Raises:
            Refused: what a replica would hold of it at once is too much, or the clip cannot give the frames asked for.
        """
        options = part.options
        if info.kind == "image":
            return picture_cost(info, self._pictures, options), options
        rule = part.frames.rule(info) if part.frames else None
        if rule is not None:
            options = with_frames(options, rule.as_options())
        try:
            sampling = sample_video(info, self._videos, options)
        except ValueError as error:
            raise broken(
                "media_aspect_extreme", f"{info.width}x{info.height} pixels: {error}", "crop or pad it"
            ) from None
        if sampling.decoded_bytes > self._limits.max_sampled_bytes:
            limit = self._limits.max_sampled_bytes
            frames = f"{sampling.decoded_bytes // (3 * info.width * info.height)} frames of {info.width}x{info.height}"
            raise too_large(
                "media_too_many_pixels",
                f"the {frames} that a replica would load are {sampling.decoded_bytes} bytes, more than {limit}",
                "ffmpeg -i INPUT -vf scale=-2:720 OUTPUT.mp4, or ask for fewer frames (media_io_kwargs.video.fps)",
            )
        if part.frames is not None and rule is not None:
            part.frames.check_obeyed(rule, len(sampling.indices), info)
        return sampling, options

    # ---- uploads ----------------------------------------------------------------------------------------------------

    async def upload(
        self, chunks: AsyncIterator[bytes], tenant: str, *, filename: str, terms: Callable[[], tuple[str, float | None]]
    ) -> FileRecord:
        """Keep a file for a tenant (`POST /v1/files`); it is probed now, so that a bad one is refused now.

        Args:
            terms: purpose, and seconds until it expires (None: the most); asked for after the last chunk, and may
                raise.

        Raises:
            InputError: as `admit` (the field is `file`), or 413 `file_storage_full`.
            NotReady, StorageFailure, ServiceFailure: as `admit`.
        """
        try:
            blob = await self.store.put_stream(chunks, self._limits.max_media_bytes)
            with blob:
                purpose, age_s = terms()
                head = await asyncio.to_thread(_head, blob)
                kind: Kind = "image" if sniff(head).kind == "image" else "video"
                self._check_quarantine(blob.sha256)
                media = (await self.screen.judge(blob, kind, tenant)).info
                assert media is not None
                return await self.uploads.create(
                    tenant, blob, filename=filename, purpose=purpose, media=media, age_s=age_s
                )
        except Refused as refused:
            raise refused.as_error("file") from None


def _head(blob: Blob) -> bytes:
    with blob.path.open("rb") as file:
        return file.read(HEAD_BYTES)
