"""Jobs and results survive JSON, and a result that says two things or nothing is refused."""

import json

import pytest
from pydantic import ValidationError

from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.job import EngineError, EngineInfo, EngineJob, EngineResult, WaveRecord

OUTPUTS = {"args": {"name": "a"}, "status": "success", "message": None, "stack_trace": None}


def test_job_round_trips_and_names_its_sample():
    job = EngineJob(request_id="r", name="a", output_dir="/o/r/a", args={"prompt": "x", "seed": 3})
    assert EngineJob.model_validate(json.loads(job.model_dump_json())) == job
    assert job.key == "r/a"


def test_result_round_trips_with_error_code():
    error = EngineError.of(SampleError(SampleCode.OUT_OF_MEMORY, "too large"))
    result = EngineResult(name="a", error=error, wave=WaveRecord(inference_batch=4, slot=2), phases={"denoise": 1.5})
    again = EngineResult.model_validate(json.loads(result.model_dump_json()))
    assert again == result
    assert again.error is not None and again.error.code is SampleCode.OUT_OF_MEMORY and again.error.retryable


def test_result_must_be_one_of_two():
    error = EngineError.of(SampleError(SampleCode.CANCELLED, "cancelled"))
    with pytest.raises(ValidationError):
        EngineResult(name="a")
    with pytest.raises(ValidationError):
        EngineResult(name="a", outputs=OUTPUTS, error=error)


@pytest.mark.parametrize("file", ["/abs/vision.jpg", "../vision.jpg", "r/../../vision.jpg", ""])
def test_result_files_stay_below_the_root(file):
    with pytest.raises(ValidationError):
        EngineResult(name="a", outputs={**OUTPUTS, "outputs": [{"content": {}, "files": [file]}]})


def test_info_round_trips():
    info = EngineInfo(
        engine="diffusers", revision="diffusers-0.42.1", backend="diffusers-ray-serve", checkpoint="tiny",
        checkpoint_revision="seed-0", checkpoint_digest="ab", weights="random", device="cpu", dtype="float32",
        supported_modes=("text2image",), max_num_seqs=4,
    )  # fmt: skip
    assert EngineInfo.model_validate_json(info.model_dump_json()) == info
