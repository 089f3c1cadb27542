"""Test support: stand-ins for the guardrails' models, with RANDOM weights, that upstream's own classes load.

Run it with the framework's interpreter and a folder: `classifier/` is a tiny model of its kind, `faces.pth` holds
holds the face detector's tensors. They judge nothing.
"""

import json
import sys
from pathlib import Path

import torch
from retinaface.data import cfg_re50
from retinaface.models.retinaface import RetinaFace
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2TokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def classifier(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = Qwen2TokenizerFast(
        tokenizer_object=inner, unk_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL, chat_template=TEMPLATE,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    classifier(folder / "classifier")
    cfg_re50["pretrain"] = False  # or it fetches the backbone's weights
    torch.save(RetinaFace(cfg=cfg_re50, phase="test").state_dict(), folder / "faces.pth")
    print(json.dumps(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
