"""A Rerun recording of publications: images, videos on a timeline, and what is known about each, to scrub and compare.

    <request id>/provenance            text: engine, weights, guardrails, status, what it was derived from
    <request id>/<sample>/about        text: prompt, seed, hashes, notes, possible defects, or why there is no result
    <request id>/<sample>/vision       the encoded image, or the encoded video and a reference for each of its frames
    <request id>/<sample>/control_*    the same for each control

Media are logged as they are encoded, one file at a time, never as decoded frames; the ids depend on the publications
alone. Rerun itself is imported only here and only when a recording is made: it brings numpy and pyarrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from cosmos3_serve.errors import UsageError
from cosmos3_serve.review.publication import Card, Publication

APPLICATION = "cosmos3-review"
TIMELINE = "video_time"
MAX_MEDIA_BYTES = 128 * 1024 * 1024  # of one file: while it is logged, Rerun holds about six copies of it (measured)
MAX_VIEWS = 40
TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}


def recording_id(publications: Sequence[Publication]) -> str:
    """The same publications, in the same order, are the same recording."""
    return hashlib.sha256("\n".join(publication.digest for publication in publications).encode()).hexdigest()[:32]


class Recording:
    """Context manager that writes one .rrd file; call `add` for each publication and `sample` for each sample.

    Raises:
        UsageError: code `extra_missing`: rerun-sdk is not installed.
    """

    def __init__(self, path: Path, publications: Sequence[Publication]) -> None:
        try:
            import rerun
        except ImportError:
            raise UsageError(
                "a recording needs rerun-sdk, which is not installed",
                remedy="pip install '.[review]' in a checkout of cosmos3-serve, "
                "or leave the recording out with --no-rrd",
                code="extra_missing",
            ) from None
        self._rr: Any = rerun
        self._path, self._publications = path, publications
        self._roots = roots(publications)

    def __enter__(self) -> Self:
        rr = self._rr
        self._stream = rr.RecordingStream(
            APPLICATION, recording_id=recording_id(self._publications), send_properties=False
        )
        # When it was drawn says nothing about the samples, and would make each recording another one.
        rr.set_log_time_enabled(False, recording=self._stream)
        rr.set_log_tick_enabled(False, recording=self._stream)
        self._stream.save(self._path, default_blueprint=self._blueprint())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()
        self._stream.disconnect()

    def add(self, index: int) -> None:
        """The facts about one publication."""
        self._text([self._roots[index], "provenance"], _facts(self._publications[index]))

    def sample(self, index: int, card: Card, remarks: Sequence[str]) -> None:
        """The facts about one sample; its media come with `media`."""
        self._text([self._roots[index], card.name, "about"], about(self._publications[index], card, remarks))

    def media(self, index: int, card: Card, artifact: str, path: Path) -> str:
        """Log one encoded file; returns why it was left out, empty where it was not."""
        rr = self._rr
        name = PurePosixPath(artifact)
        entity = rr.new_entity_path([self._roots[index], card.name, name.stem])
        if path.stat().st_size > MAX_MEDIA_BYTES:
            return f"{name.name} is larger than {MAX_MEDIA_BYTES} bytes and not in the recording"
        if name.suffix in TYPES:
            picture = rr.EncodedImage(contents=path.read_bytes(), media_type=TYPES[name.suffix])
            self._stream.log(entity, picture, static=True)
        else:
            video = rr.AssetVideo(contents=path.read_bytes(), media_type="video/mp4")
            self._stream.log(entity, video, static=True)
            try:
                times = video.read_frame_timestamps_nanos()
            except (RuntimeError, ValueError) as error:
                return f"{name.name} has no readable frame times ({type(error).__name__})"
            self._stream.send_columns(
                entity,
                indexes=[rr.TimeColumn(TIMELINE, duration=[int(t) * 1e-9 for t in times])],
                columns=rr.VideoFrameReference.columns_nanos(times),
            )
        self._stream.flush()  # one file's bytes at a time wait to be written
        return ""

    def _text(self, parts: list[object], text: str) -> None:
        document = self._rr.TextDocument(text, media_type="text/markdown")
        self._stream.log(self._rr.new_entity_path(parts), document, static=True)

    def _blueprint(self) -> Any:
        """One view a sample, its facts below; past `MAX_VIEWS` the viewer arranges by itself."""
        import rerun.blueprint as rrb

        views: list[Any] = []
        for root, publication in zip(self._roots, self._publications, strict=True):
            for card in publication.cards[: MAX_VIEWS - len(views)]:
                place = self._rr.new_entity_path([root, card.name])
                picture = rrb.Spatial2DView(origin=f"{place}/vision", name=card.name)
                facts = rrb.TextDocumentView(origin=f"{place}/about", name=f"about {card.name}")
                views.append(rrb.Vertical(picture, facts, row_shares=[3, 1]))
        return rrb.Blueprint(rrb.Grid(*views), collapse_panels=True)


def roots(publications: Sequence[Publication]) -> list[str]:
    """One name for each publication: its request id, numbered where two share it (an original and a recovered one)."""
    names: list[str] = []
    for publication in publications:
        name = publication.provenance.request_id
        count = sum(other.provenance.request_id == name for other in publications[: len(names)])
        names.append(name if not count else f"{name}-{count + 1}")
    return names


def _facts(publication: Publication) -> str:
    record = publication.provenance
    lines = [
        f"# {record.model}, batch {record.request_id}",
        f"- status: {record.status}",
        f"- engine: {publication.engine}",
        f"- weights: {record.weights}",
        f"- guardrails configured: {record.guardrails}",
        f"- samples: {len(record.sample_names)}, missing: {len(record.missing)}",
        f"- provenance.json: sha256 {publication.digest}",
        f"- request.json: sha256 {record.request_sha256}",
        f"- response.json: {f'sha256 {record.response_sha256}' if record.response_sha256 else 'none'}",
    ]
    if record.recovery:
        attempt = record.recovery.first_attempt
        ended = f"{attempt.state}, {attempt.failure_code or 'no outcome recorded'}" if attempt else "no record"
        lines += [
            f"- derived from: {record.recovery.source}, {len(record.recovery.natives)} native files",
            f"- first attempt: {ended}",
        ]
    return "\n".join(lines)


def about(publication: Publication, card: Card, remarks: Sequence[str]) -> str:
    """Everything a reviewer may want to know about one sample, as Markdown; the prompt whole, in its own script."""
    record = publication.provenance
    lines = [f"# {card.name}", "", *(f"    {line}" for line in (card.prompt or "(no prompt)").splitlines()), ""]
    lines += [
        f"- {card.mode or 'mode unknown'}, seed {card.seed}, frames {card.frames}",
        f"- engine {publication.engine}, weights {record.weights}, {card.guardrails}",
    ]
    if card.failed:
        lines.append(f"- **no result**: {card.code}: {card.message}")
    lines += [f"- **{remark}**" for remark in remarks]
    lines += [f"- {item.path.split('/', 2)[2]}: {item.bytes} bytes, sha256 {item.sha256}" for item in card.files]
    return "\n".join(lines)
