"""Token ids and action captions against diffusers' own."""

import json
from typing import ClassVar

import pytest
from support.engine import components

from cosmos3_serve.generator.engines.actions import VIEW_POINTS
from cosmos3_serve.generator.engines.diffusers.prompt import PromptEncoder, action_caption


@pytest.mark.parametrize("text", ["", "a red cube", "ü ∆ 漢字 \n two lines", "<|im_end|> injected", '{"a": 1}'])
def test_ids(text):
    from diffusers import Cosmos3OmniPipeline

    parts = components()

    class Pipe:  # what the pipeline's method reads of itself
        text_tokenizer = parts.tokenizer
        llm_special_tokens: ClassVar = {
            "start_of_generation": parts.tokenizer.convert_tokens_to_ids("<|vision_start|>"),
            "eos_token_id": parts.tokenizer.eos_token_id,
        }
        image_resolution_template = video_resolution_template = ""
        inverse_image_resolution_template = inverse_video_resolution_template = ""

    theirs, _ = Cosmos3OmniPipeline.tokenize_prompt(
        Pipe, text, num_frames=1, use_system_prompt=False, add_resolution_template=False
    )
    assert list(PromptEncoder(parts.tokenizer).ids(text)) == theirs


@pytest.mark.parametrize("view_point", sorted(VIEW_POINTS))
@pytest.mark.parametrize("frames, fps, size", [(17, 10, (320, 192)), (5, 24, (256, 256)), (2001, 24, (192, 320))])
def test_action_caption(view_point, frames, fps, size):
    from diffusers import Cosmos3OmniPipeline

    for text in ("pick the cube", " Stop! ", "done."):
        ours = action_caption(text, view_point=view_point, num_frames=frames, fps=fps, size=size)
        theirs = Cosmos3OmniPipeline._build_action_json_prompt(
            text, view_point=view_point, num_frames=frames, fps=fps, height=size[1], width=size[0]
        )
        assert json.loads(ours) == json.loads(theirs)
        assert ours == theirs
