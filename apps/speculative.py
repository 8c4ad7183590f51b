"""Speculative decoding of the live model by prompt lookup: a step may give several tokens.

The draft costs nothing: whatever followed the last few tokens where they stood before in the text
(Saxena 2023, "Prompt Lookup Decoding", github.com/apoorvumang/prompt-lookup-decoding; transformers
calls it ``prompt_lookup_num_tokens``). One run of the model scores the draft's tokens all at once,
and those up to the first that it would not have chosen itself are kept, with its own choice there
(Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", greedy case).
The loop is our own because transformers' streamers are given an answer token by token, and a
stream's bursts are the point here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from apps.model import ModelSource
from apps.sources import Log, SourceError


class PromptLookupSource(ModelSource):
    """Answers as :class:`ModelSource` does, faster where the text repeats itself.

    The tokens are those of plain greedy decoding. Runs over several tokens add up in another
    order than runs over one, so two choices that score equal up to rounding may be swapped; with
    32-bit floats (CPU) that is rare, with 16-bit ones (CUDA) it is not.

    Args:
        ngram: longest stretch of text that is looked up; shorter ones are tried after it.
        drafts: tokens that are drafted at most. Both defaults are Saxena's.
        path, device, threads, repetition_penalty, log: as for :class:`ModelSource`.

    Raises:
        SourceError: as for :class:`ModelSource`; and when answering, if the model's cache cannot
            take tokens back.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        ngram: int = 3,
        drafts: int = 10,
        device: str = "auto",
        threads: int | None = None,
        repetition_penalty: float = 1.0,
        log: Log | None = None,
    ) -> None:
        if ngram < 1 or drafts < 1:
            raise SourceError(
                f"prompt lookup needs n-grams and drafts of at least 1 token, not {ngram}, {drafts}"
            )
        self.ngram = ngram
        self.drafts = drafts
        super().__init__(
            path, device=device, threads=threads, repetition_penalty=repetition_penalty, log=log
        )

    def settings(self) -> dict[str, object]:
        return {
            **super().settings(),
            "decoding": "greedy, prompt lookup",
            "ngram": self.ngram,
            "drafts": self.drafts,
        }

    def _steps(self, ids: list[int], room: int) -> Iterator[list[int]]:
        torch = self._torch
        text = Lookup(self.ngram, ids)
        seen = torch.tensor(ids, device=self.device)
        step, draft = seen[None], list[int]()
        cache: dict[str, Any] = {}
        while room > 0:
            with torch.inference_mode():
                scores, cache = self._forward(step, cache, len(draft) + 1)
                chosen, seen = self._verify(scores, draft, seen)
                self._take_back(cache, len(draft) + 1 - len(chosen))
            room -= len(chosen)
            yield chosen
            text.extend(chosen)
            # The run after a draft adds a token of its own, and may not go past the room.
            draft = text.draft(min(self.drafts, room - 1))
            step = torch.tensor([[chosen[-1], *draft]], device=self.device)

    def _verify(self, scores: Any, draft: list[int], seen: Any) -> tuple[list[int], Any]:
        """Return the model's own tokens up to the first that the draft has not foreseen."""
        chosen: list[int] = []
        for position in range(len(draft) + 1):
            token = self._choose(scores[position], seen)
            seen = self._torch.cat((seen, token[0]))
            chosen.append(int(token))
            if chosen != draft[: position + 1]:
                break
        return chosen, seen

    def _take_back(self, cache: dict[str, Any], count: int) -> None:
        """Forget the last ``count`` tokens: drafted, scored, and wrong."""
        (keys_and_values,) = cache.values()
        # Sliding windows and recurrent states drop what is past unless they are told beforehand;
        # then they drop it when they are cropped, be it by nothing.
        record = getattr(keys_and_values, "activate_past_recording", None)
        try:
            if record is not None:
                record()
            if count or record is not None:
                keys_and_values.crop(-count)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError):
            raise SourceError(
                f"{self.name} cannot take tokens back from its cache: use source 'model'"
            ) from None


class Lookup:
    """A text of tokens that can say what followed its last n-gram where it stood before."""

    def __init__(self, longest: int, ids: Iterable[int] = ()) -> None:
        self._ids: list[int] = []
        # For each length of n-grams: where the token after its latest occurrence stands.
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in range(longest)]
        self.extend(ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in ids:
            end = len(self._ids)
            for length, after in enumerate(self._after, start=1):
                if length <= end:
                    after[tuple(self._ids[end - length :])] = end
            self._ids.append(token)

    def draft(self, count: int) -> list[int]:
        """Return ``count`` tokens that may come next, or none if the n-grams are all new.

        The longest n-gram counts, and of its occurrences the latest. Where what followed reaches
        the end of the text, the text goes round in a circle, and the draft goes on with it.
        """
        for length in range(len(self._after), 0, -1):
            start = self._after[length - 1].get(tuple(self._ids[-length:]))
            if start is not None:
                period = len(self._ids) - start
                return [self._ids[start + i % period] for i in range(count)]
        return []
