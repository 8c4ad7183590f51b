"""Language models of a few numbers, whose next token depends on the last one by a table."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END, START, TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def make(folder: Path, template: str | None, following: dict[str, str], other: str) -> Path:
    """A Hugging Face folder whose config ends sequences with ``<|endoftext|>``.

    Letters are bytes; after the token T comes ``following[T]``, or ``other``.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_special_tokens({"additional_special_tokens": [END, START, TURN]})
    tokenizer.eos_token = END
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=512,
            eos_token_id=tokenizer.convert_tokens_to_ids(END),
            bos_token_id=None,
        )
    )
    number = tokenizer.convert_tokens_to_ids
    with torch.no_grad():
        for layer in model.model.layers:  # what is embedded reaches the head as it is
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding.zero_()
        head.zero_()
        embedding[:, 0] = head[number(other), 0] = 1
        for axis, (last, following_one) in enumerate(following.items(), start=1):
            embedding[number(last), 0] = 0
            embedding[number(last), axis] = head[number(following_one), axis] = 1
    model.save_pretrained(folder)
    return folder
