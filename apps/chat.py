"""The chat format of a model: how a prompt is put to it, and which tokens close its turn."""

from __future__ import annotations

from typing import Any

from apps.sources import SourceError
from terminal.text import one_line

#: What the model says in a chat made up to see the template around it.
_SAID = "eloquent"
_CHAT = (
    {"role": "user", "content": "why"},
    {"role": "assistant", "content": _SAID},
    {"role": "user", "content": "how"},
)


def encode(tokenizer: Any, name: str, prompt: str) -> list[int]:
    """Return the prompt's token ids, in the chat format if the tokenizer has one.

    Raises:
        SourceError: the template refuses the prompt, or there is no token to begin with; `name` is
            the model's.
    """
    if tokenizer.chat_template:
        try:
            encoded = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
            )
        # A template is a program of its own, and raises what it likes.
        except Exception as error:  # noqa: BLE001
            raise SourceError(
                f"the chat template of {name} fails on the prompt: {one_line(error)}"
            ) from None
    else:
        encoded = tokenizer(prompt)
    ids = list(encoded["input_ids"])
    if not ids and tokenizer.bos_token_id is not None:
        ids = [tokenizer.bos_token_id]
    if not ids:
        raise SourceError(f"{name} cannot answer an empty prompt")
    return ids


def closing_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the ids of the tokens that the chat template puts after what the model has said.

    Mostly one, such as <|im_end|>. Where a turn is closed by the beginning of the next one, it is
    that: a model that goes on with it would speak for the user.
    """
    if not tokenizer.chat_template:
        return frozenset()
    return frozenset(
        found
        for count in (2, 3)
        if (found := _after_answer(tokenizer, list(_CHAT[:count]))) is not None
    )


def _after_answer(tokenizer: Any, messages: list[dict[str, str]]) -> int | None:
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        _, said, rest = text.rpartition(_SAID)
        ids = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"] if said else []
    except Exception:  # noqa: BLE001 - a template for single questions: the files' own must do
        return None
    # A token of its own, not a piece of text: the model may well say that.
    marks = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return ids[0] if ids and ids[0] in marks else None
