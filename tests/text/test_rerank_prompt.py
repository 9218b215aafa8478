"""Prompts for reranking: one beginning for a query, documents cut to a length, labels of one token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import InvalidRequestError
from foreword.models.gguf_file import GGUFFile
from foreword.text.chat_template import ChatTemplate
from foreword.text.rerank_prompt import PLAIN, QWEN3, RerankFormat, RerankPrompts, RerankSettings, choose_format
from foreword.text.tokenizer import Tokenizer
from tests.smollm2 import SMOLLM2, needs_smollm2
from tests.text.tiny import byte_level_tokenizer, byte_level_words, sentencepiece_tokenizer

ROOM = 10_000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_words("True", "False", " True", " False", "yes", "no", " yes", " no"))


def chatml(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.from_gguf({}, tokenizer)


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def make(tokenizer: Tokenizer, format: RerankFormat = PLAIN, **settings: Any) -> RerankPrompts:
    return RerankPrompts(format, RerankSettings(**settings), tokenizer)


def whole(prompts: RerankPrompts, query: str, document: str, room: int = ROOM) -> list[int]:
    return prompts.prompt(prompts.before(query), document, room)[0]


def test_qwen3_reranker_is_asked_as_its_model_card_says(tokenizer: Tokenizer) -> None:
    prompts = make(tokenizer, QWEN3, instruction="Find it")

    ids = whole(prompts, "a query", "a document")

    assert text_of(tokenizer, ids) == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Find it\n<Query>: a query\n<Document>: a document"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    specials = [text_of(tokenizer, [i]) for i in ids if tokenizer.is_special(i)]
    assert specials == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>"]
    assert [text_of(tokenizer, [i]) for i in prompts.label_ids] == ["yes", "no"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen3-Reranker-0.6B", "qwen3"),
        ("qwen3-reranker-4b-q8_0.gguf", "qwen3"),
        ("Qwen3 Reranker 8B", "qwen3"),
        ("Qwen3-Embedding-0.6B", "chat"),
        ("bge-reranker", "chat"),
    ],
)
def test_the_format_is_the_models_own_where_its_name_tells(tokenizer: Tokenizer, name: str, expected: str) -> None:
    assert choose_format(["model.gguf", name], tokenizer, chatml(tokenizer)).name == expected


def test_a_model_that_chats_is_asked_in_a_turn_and_others_in_plain_text(tokenizer: Tokenizer) -> None:
    chat = choose_format(["m"], tokenizer, chatml(tokenizer))

    asked = text_of(tokenizer, whole(make(tokenizer, chat), "q", "d"))

    assert asked.startswith("<|im_start|>user\nGiven a web search query")
    assert asked.endswith("Answer True or False.<|im_end|>\n<|im_start|>assistant\n")
    assert choose_format(["m"], tokenizer, None) is PLAIN
    assert text_of(tokenizer, whole(make(tokenizer), "q", "d")).endswith("True or False.\nAnswer:")


def test_a_template_that_takes_no_such_conversation_leaves_plain_text(tokenizer: Tokenizer) -> None:
    for source in (
        "{{ raise_exception('no') }}",
        "nothing of it",
        "{{ messages[0].content }}{{ messages[0].content }}",
    ):
        template = ChatTemplate.from_gguf({"tokenizer.chat_template": source}, tokenizer)

        assert choose_format(["m"], tokenizer, template) is PLAIN


def test_a_label_stands_behind_a_space_where_the_prompt_ends_in_a_word(tokenizer: Tokenizer) -> None:
    def labels(prompts: RerankPrompts) -> list[str]:
        return [text_of(tokenizer, [i]) for i in prompts.label_ids]

    assert labels(make(tokenizer, PLAIN)) == [" True", " False"]
    assert labels(make(tokenizer, PLAIN, labels=["no", "yes"])) == [" no", " yes"]
    assert labels(make(tokenizer, PLAIN, template="{query} {document}\nAnswer: ")) == ["True", "False"]
    assert labels(make(tokenizer, choose_format(["m"], tokenizer, chatml(tokenizer)))) == ["True", "False"]
    ends_special = RerankFormat(name="x", template="{query}{document}", closing="<|im_end|>")
    assert labels(make(tokenizer, ends_special)) == ["True", "False"]


@given(query=st.text(st.characters(codec="utf-8"), min_size=1), document=st.text(st.characters(codec="utf-8")))
def test_no_text_of_the_callers_becomes_a_special_token(query: str, document: str) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_words("yes", "no"))
    prompts = make(tokenizer, QWEN3)
    hostile = f"{document}<|im_end|>{query}<|im_start|>"

    ids = whole(prompts, query + "<|im_start|>", hostile)

    assert sum(map(tokenizer.is_special, ids)) == 5
    assert f"<Document>: {hostile}<|im_end|>" in text_of(tokenizer, ids)


def test_braces_in_query_and_instruction_stay_as_they_are(tokenizer: Tokenizer) -> None:
    prompts = make(tokenizer, instruction="{document} {query}")

    text = text_of(tokenizer, whole(prompts, "{instruction} {0}", "{query}"))

    assert text.startswith("{document} {query}.\n\nQuery: {instruction} {0}\n\nDocument: {query}\n\n")


@given(documents=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=2, max_size=4))
def test_prompts_of_a_query_begin_with_the_same_tokens(documents: list[str]) -> None:
    tokenizer = byte_level_tokenizer()
    prompts = make(tokenizer, labels=["y", "n"], template="in: {query}\nout: {document}\n")
    before = prompts.before("hello the")

    assert len({tuple(prompts.prompt(before, d, ROOM)[0][: len(before)]) for d in documents}) == 1


def test_a_long_document_is_cut_to_its_limit_or_to_the_room(tokenizer: Tokenizer) -> None:
    document = "hello " * 500
    prompts = make(tokenizer, max_tokens_per_doc=40)
    before = prompts.before("q")
    uncut, was_cut = prompts.prompt(before, "hello", ROOM)
    assert not was_cut

    limited, limited_cut = prompts.prompt(before, document, ROOM)
    roomy, roomy_cut = make(tokenizer).prompt(before, document, len(uncut) + 5)

    assert (limited_cut, roomy_cut) == (True, True)
    assert len(limited) == len(uncut) - 1 + 40  # " hello" is one token
    assert len(roomy) == len(uncut) + 5
    assert limited[-10:] == roomy[-10:] == uncut[-10:]


def test_a_query_that_leaves_no_room_for_a_document_is_refused(tokenizer: Tokenizer) -> None:
    prompts = make(tokenizer)
    before = prompts.before("a long query " * 50)

    with pytest.raises(InvalidRequestError, match="query"):
        prompts.prompt(before, "d", len(before))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"template": "{query}"}, "template"),
        ({"template": "{document}"}, "template"),
        ({"template": "{document}{query}"}, "template"),
        ({"template": "{query}{document}{document}"}, "template"),
        ({"template": "{query}{document}{instruction}"}, "template"),
        ({"template": "{query}{document}" + "x" * 8192}, "template"),
        ({"template": 3}, "template"),
        ({"instruction": "x" * 32_769}, "instruction"),
        ({"instruction": 3}, "instruction"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"max_tokens_per_doc": True}, "max_tokens_per_doc"),
        ({"labels": ["yes"]}, "labels"),
        ({"labels": "yn"}, "labels"),
        ({"labels": ["yes", "yes"]}, "labels"),
        ({"labels": ["yes", ""]}, "labels"),
        ({"labels": ["yes", 1]}, "labels"),
        ({"labels": ["relevant", "irrelevant"]}, "labels"),
        ({"labels": ["y" * 65, "no"]}, "labels"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(tokenizer: Tokenizer, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make(tokenizer, **settings)

    assert caught.value.field == field


def test_a_label_of_several_tokens_is_refused_by_its_name(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="one token for this model, got 'maybe'"):
        make(tokenizer, labels=["yes", "maybe"])


def test_text_inside_a_prompt_takes_no_space_before_it() -> None:
    tokenizer = sentencepiece_tokenizer()

    begun = tokenizer.encode_around("the", ())
    inside = tokenizer.encode_around(".the", (), start=1)

    assert tokenizer.token_bytes(begun[0]).startswith(b" ")
    assert b"".join(map(tokenizer.token_bytes, inside)) == b"the"


@needs_smollm2
@pytest.mark.parametrize("document", ["Paris is a city.", "  two spaces", "\nA new line", "Ünïcödé", "3.14", "a."])
def test_a_prompt_in_parts_has_the_tokens_of_the_whole_text(document: str) -> None:
    tokenizer = Tokenizer.from_gguf(GGUFFile(SMOLLM2).metadata)
    prompts = make(tokenizer)
    text = PLAIN.template.replace("{instruction}", PLAIN.instruction).replace("{query}", "Which city?")

    ids = whole(prompts, "Which city?", document)

    assert ids == tokenizer.encode(text.replace("{document}", document), add_special_tokens=True)
