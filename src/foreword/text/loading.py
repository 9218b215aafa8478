"""The text side of a model's files: its tokenizer and, if it can chat, its template."""

from foreword.core.errors import InvalidRequestError, ModelFormatError
from foreword.models.files import ModelFiles
from foreword.text.chat_template import ChatTemplate
from foreword.text.tokenizer import Tokenizer


def load_text(files: ModelFiles) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and chat template; no template where the model brings none.

    Raises:
        ModelFormatError: no tokenizer, a malformed one, or one with more tokens than the model has embeddings.
    """
    if files.metadata is not None:
        tokenizer = Tokenizer.from_gguf(files.metadata, source=str(files.path))
    elif files.tokenizer_json is not None:
        # Without a generation config the model's own config stands for it, as in transformers.
        ends = files.generation_config_json or files.path / "config.json"
        tokenizer = Tokenizer.from_file(files.tokenizer_json, files.tokenizer_config_json, ends)
    else:
        raise ModelFormatError(files.path, "tokenizer.json", "no such file, and a model needs its tokenizer")
    if tokenizer.vocab_size > files.config.vocab_size:
        detail = f"{tokenizer.vocab_size} tokens, but the model has {files.config.vocab_size} embeddings"
        raise ModelFormatError(files.path, "tokenizer", detail)
    return tokenizer, _chat_template(files, tokenizer)


def _chat_template(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate | None:
    try:
        if files.metadata is not None:
            return ChatTemplate.from_gguf(files.metadata, tokenizer)
        return ChatTemplate.from_folder(files.path, tokenizer)
    except InvalidRequestError:
        return None
