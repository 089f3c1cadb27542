"""Admission: from a request to samples that can be queued. All of it is CPU work: call it off the event loop.

Everything that can be refused is refused here, before the ledger hears of the batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.grouping import shape_key, wave_key
from cosmos3_serve.contract.inputs import InputField, fold_text_inputs
from cosmos3_serve.contract.parse import parse_batch
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.resolve import resolve_batch, resolve_sample
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import InputError, SampleCode, SampleError
from cosmos3_serve.generator.guardrails.record import CheckRecord
from cosmos3_serve.generator.queue.scheduler import Ticket
from cosmos3_serve.generator.queue.staging import Staged, Stager

SEED_RANGE = 2**31


@dataclass(slots=True)
class Work:
    """One sample on its way: what was asked, and its inputs once they are here.

    What it resolves to is worked out when it is needed (0.1 ms): kept, it would be most of what a waiting sample holds.

    `texts` are those of its text objects once they are here. `queued_at`, `staging_s` and `check_s` are seconds of the
    monotonic clock; `needs_inputs` until `staged` is set. `checks` is what the text guard recorded, None where it is
    off.
    """

    request_id: str
    index: int
    name: str
    asked: Mapping[str, Any]
    profile: EngineProfile
    seed: int
    needs_inputs: bool
    queued_at: float = 0.0
    staging_s: float | None = None
    staged: Staged | None = None
    texts: Mapping[tuple[str | int, ...], str] | None = None
    check_s: float = 0.0
    checks: tuple[CheckRecord, ...] | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.request_id, self.index

    @property
    def resolved(self) -> ResolvedSample:
        asked = self.asked if self.texts is None else fold_text_inputs(self.asked, self.texts)
        return resolve_with(asked, self.profile, self.seed)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A batch that may be accepted. `inputs` by sample index; `size` is about what the batch holds in memory."""

    work: list[Work]
    inputs: dict[int, list[InputField]]
    tickets: list[Ticket]
    size: int

    def pages(self, count: int) -> Iterator[Admitted]:
        """The same samples, at most `count` at a time; the inputs of all come with the first."""
        for start in range(0, len(self.work), count):
            stop = start + count
            yield Admitted(self.work[start:stop], {} if start else self.inputs, self.tickets[start:stop], self.size)


def admit(
    request: BatchRequest,
    request_id: str,
    profile: EngineProfile,
    stager: Stager,
    *,
    max_samples: int,
) -> Admitted:
    """Check a batch completely and draw the seeds it doesn't name.

    Raises:
        InputError: of the kind and with all the findings that `parse_batch` gives.
    """
    try:
        inputs = stager.check(request.samples, request.uploads)
        resolved = resolve_batch(request, profile, draw_seed=lambda: secrets.randbelow(SEED_RANGE))
    except (InputError, ValidationError):
        # Something is wrong: now everything that is wrong, in the contract's own order and words.
        parse_batch(
            request.body(),
            max_samples=max_samples,
            profile=profile,
            check_uri=stager.check_uri,
            uploads=request.uploads,
        )
        raise
    work = [
        Work(request_id, index, item.name, sample, profile, item.seed or 0, needs_inputs=index in inputs)
        for index, (sample, item) in enumerate(zip(request.samples, resolved, strict=True))
    ]
    return _admitted(work, resolved, inputs)


def readmit(
    samples: Sequence[Mapping[str, Any]],
    seeds: Mapping[int, int],
    request_id: str,
    profile: EngineProfile,
    stager: Stager,
) -> Admitted:
    """Samples of a batch that was accepted before, with the seeds they had: `seeds` names which.

    Raises:
        InputError: what was allowed then is not allowed by this service any more.
    """
    found = stager.check(samples, stager.uploads(request_id))
    inputs = {index: fields for index, fields in found.items() if index in seeds}
    resolved = [resolve_with(samples[index], profile, seed) for index, seed in seeds.items()]
    work = [
        Work(request_id, index, item.name, samples[index], profile, seed, needs_inputs=index in inputs)
        for (index, seed), item in zip(seeds.items(), resolved, strict=True)
    ]
    return _admitted(work, resolved, inputs)


def resolve_with(sample: Mapping[str, Any], profile: EngineProfile, seed: int) -> ResolvedSample:
    return resolve_sample(SampleOverrides.model_validate(sample), profile, seed=seed)


def fold_staged(work: Work, texts: Mapping[tuple[str | int, ...], str]) -> None:
    """Take in the sample's text objects. Raises SampleError `input_invalid` when they don't fit."""
    work.texts = texts
    try:
        work.resolved  # noqa: B018
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
        raise SampleError(SampleCode.INPUT_INVALID, f"the staged text does not fit: {where}") from None
    except InputError as error:
        raise SampleError(SampleCode.INPUT_INVALID, error.detail) from None
    except ValueError as error:
        raise SampleError(SampleCode.INPUT_INVALID, str(error)) from None


def _admitted(work: list[Work], resolved: Sequence[ResolvedSample], inputs: dict[int, list[InputField]]) -> Admitted:
    size = sum(len(repr(item.asked)) for item in work)
    keys: dict[Hashable, Hashable] = {}  # equal keys are one object: there are few shapes and many samples

    def one(key: Hashable) -> Hashable:
        return keys.setdefault(key, key)

    tickets = [
        Ticket(item.request_id, item.index, one(wave_key(sample)), one(shape_key(sample)), ready=not item.needs_inputs)
        for item, sample in zip(work, resolved, strict=True)
    ]
    return Admitted(work, inputs, tickets, size)
