"""Faults: upstream's exceptions as codes, without a word of a prompt, a path or a stack."""

import pytest
from pydantic import BaseModel, ValidationError
from ray.exceptions import ActorDiedError, RayTaskError

from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.engines.framework.faults import Fault, fault_of, root_cause

SECRET = "a secret plan"
FOLDER = "/outputs/r/s"


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def crossed(error: Exception, times: int = 2) -> BaseException:
    """The error as it arrives after so many processes."""
    found: Exception = error
    for _ in range(times):
        found = RayTaskError("generate", "a long traceback", found).as_instanceof_cause()
    return found


def wrong_type() -> ValidationError:
    class Sample(BaseModel):
        seed: int

    with pytest.raises(ValidationError) as caught:
        Sample(seed=SECRET)
    return caught.value


CASES = [
    (ValueError(f"Guardrail blocked prompt '{FOLDER}': '{SECRET}'"), SampleCode.GUARDRAIL_BLOCKED, False),
    (ValueError(f"Guardrail blocked video '{FOLDER}': {SECRET}"), SampleCode.GUARDRAIL_BLOCKED, False),
    (TimeoutError(), SampleCode.DEADLINE_EXCEEDED, True),
    (ActorDiedError(), SampleCode.ENGINE_FAILED, True),
    (OutOfMemoryError(f"CUDA out of memory at {FOLDER}"), SampleCode.OUT_OF_MEMORY, False),
    (RuntimeError(f"CUDA error: an illegal memory access {FOLDER}"), SampleCode.ENGINE_FAILED, True),
    (RuntimeError("NCCL error in: rank 3"), SampleCode.ENGINE_FAILED, True),
    (ValueError("Attribute 'num_steps' is not the same for all samples: [5, 6]"), SampleCode.ENGINE_FAILED, False),
    (RuntimeError("Batched function doesn't preserve batch size"), SampleCode.OUTPUT_INVALID, False),
    (ValueError("Invalid vision extension: .gif"), SampleCode.INPUT_INVALID, False),
    (OSError(f"cannot identify image file '{FOLDER}'"), SampleCode.INPUT_INVALID, False),
    (ValueError(f"Error generating sample '{SECRET}': image file is truncated"), SampleCode.INPUT_INVALID, False),
    (AssertionError(f"{SECRET} {FOLDER}"), SampleCode.ENGINE_FAILED, False),
]


@pytest.mark.parametrize(("error", "code", "fatal"), CASES, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_each_is_known_however_many_processes_it_crossed(
    error: Exception, code: SampleCode, fatal: bool, times: int
) -> None:
    fault = fault_of(crossed(error, times) if times else error)
    assert (fault.code, fault.fatal) == (code, fatal)
    assert SECRET not in fault.message and FOLDER not in fault.message and "traceback" not in fault.message


def test_a_validation_error_names_fields_and_no_values() -> None:
    fault = fault_of(wrong_type())
    assert fault == Fault(SampleCode.INPUT_INVALID, "the framework refuses seed")


def test_the_attribute_that_differs_is_named() -> None:
    fault = fault_of(ValueError("Attribute 'num_steps' is not the same for all samples: [5, 6]"))
    assert "num_steps differs" in fault.message


def test_the_first_cause_is_found_and_a_ring_of_causes_ends() -> None:
    first = ValueError("x")
    assert root_cause(crossed(first, 3)) is first
    ring, other = RuntimeError("a"), RuntimeError("b")
    ring.cause, other.cause = other, ring  # type: ignore[attr-defined]
    assert root_cause(ring) in (ring, other)


def test_a_text_that_cannot_be_made_is_no_second_failure() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert fault_of(Mute()).code is SampleCode.ENGINE_FAILED
