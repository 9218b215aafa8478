"""Templates of hostile files: none reaches Python, none runs away."""

import time
from pathlib import Path

import pytest

from foreword.core.errors import InvalidRequestError
from foreword.text.chat_template import ChatTemplate
from foreword.text.template_program import MAX_TEMPLATE_CHARACTERS
from tests.text.tiny import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
MESSAGES = [{"role": "user", "content": "x" * 1000}]

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ().__class__.__base__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ messages|map('attr', '__class__')|list }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ messages|selectattr('__class__')|list }}",
    "{{ messages|sort(attribute='__class__.__name__') }}",
    "{{ cycler.__init__.__globals__.os.popen('touch CANARY').read() }}",
    "{{ joiner.__init__.__globals__.os.popen('touch CANARY').read() }}",
    "{{ namespace.__init__.__globals__.os.popen('touch CANARY').read() }}",
    "{{ lipsum.__globals__['os'].popen('touch CANARY').read() }}",
    "{{ range.__globals__ }}",
    "{{ raise_exception.__globals__.__builtins__.open('CANARY', 'w') }}",
    "{{ strftime_now.__closure__[0].cell_contents }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os').system('touch CANARY') }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': ''}) }}",
    "{% set f = ''.format %}{{ f }}",
    "{{ '%(x)s' % {'x': 1} }}",
    "{{ 'x'.join.__self__ }}",
    "{{ 'x'.encode('utf-8') }}",
    "{{ (1).to_bytes(1, 'big') }}",
    "{{ dict.mro() }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages.clear() }}",
    "{% for x in [1] %}{{ loop._iterable }}{% endfor %}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% macro m() %}{{ caller._func.__globals__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "{% set n = namespace(__class__=1) %}",
    "{% set n = namespace(**{'__init__': 1}) %}",
    "{{ namespace(a=1).__init__.__globals__ }}",
    "{{ nothing.__init__.__globals__ }}",
    "{{ messages.__class__ }}",
    "{% import 'os' as os %}",
    "{% from 'os' import system %}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{% block x %}{{ self.x.__func__ }}{% endblock %}",
    "{{ range }}",
    "{{ dict }}",
    "{{ self }}",
    "{{ messages|map('upper') }}",
]

BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in messages[0].content %}{{ b }}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = messages[0].content.split('x') %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = 'y' in messages[0].content %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = messages[0].content[::-1] %}{% endfor %}",
    "{% for i in range(99999) %}" + "y" * 10_000 + "{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = [n.x, n.x]|join %}{% endfor %}",
    "{% set n = namespace(x=['a']) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=['a']) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
    "{% set n = namespace() %}{% set n.a = [n] %}{{ n|tojson }}",
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ [1] * 10**9 }}",
    "{{ 10**9999 }}",
    "{{ 2**(2**60) }}",
    "{{ 1.5|round(10**9, 'floor') }}",
    "{{ ('a' * 10**6)|replace('a', 'b' * 10**6) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ ('a' * 10**6).replace('', 'b' * 10**6) }}",
    "{{ ('a' * 10**6).join('b' * 10**6) }}",
    "{{ ('b' * 10**6)|join('a' * 10**6) }}",
    "{{ ('\n' * 10**6)|indent(10**6) }}",
    "{{ messages|tojson(indent=10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ 'x'|center(10**9) }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ range(100000)|map('string')|map('upper')|map('lower')|map('title')|list|join|length }}",
    "{{ ('ab ' * 10**6).split()|sort|join|length }}",
    "{{ lipsum(n=10**6) }}",
    "{{ " + "(" * 9_000 + "1" + ")" * 9_000 + " }}",
    "{{ 1" + "+1" * 30_000 + " }}",
    "{% if x %}" * 3_000,
    "x" * (MAX_TEMPLATE_CHARACTERS + 1),
]


def outcome(source: str) -> str:
    """What a template writes, or the line it fails with."""
    try:
        return ChatTemplate(source, TOKENIZER).render(MESSAGES)
    except InvalidRequestError as error:
        line = str(error)
    assert "\n" not in line
    return f"refused: {line}"


@pytest.mark.parametrize("source", ESCAPES)
def test_no_template_reaches_python(source: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    assert outcome(source.replace("CANARY", str(canary))).startswith("refused")
    assert not canary.exists()


@pytest.mark.parametrize("source", BOMBS, ids=[source[:60] for source in BOMBS])
def test_no_template_runs_away(source: str) -> None:
    start = time.process_time()

    assert outcome(source).startswith("refused")
    assert time.process_time() - start < 10.0  # an order of magnitude above what the steps allowed take


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{", "{% endfor %}", "{{ 1 | nope }}", "{{ 1 is nope }}", "{{ x.y.z }}"]
)
def test_a_broken_template_loads_and_fails_on_use(source: str) -> None:
    assert outcome(source).startswith("refused: chat_template")


def test_a_failed_rendering_leaves_the_template_usable() -> None:
    template = ChatTemplate("{% for i in range(messages[0].content|int) %}x{% endfor %}", TOKENIZER)

    with pytest.raises(InvalidRequestError, match="range"):
        template.render([{"role": "user", "content": "1000000"}])

    assert template.render([{"role": "user", "content": "3"}]) == "xxx"


def test_a_long_conversation_fits_the_allowance() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string and '</think>' in m.content %}"
        "{{ m.content.split('</think>')[-1].lstrip('\n') }}"
        "{% else %}{{ m.role ~ ': ' ~ m.content | trim }}{% endif %}{{ '\n' }}{% endfor %}"
    )
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " + "word " * 50} for i in range(5_000)]

    assert len(ChatTemplate(source, TOKENIZER).render(messages)) > 1_000_000


def test_one_long_message_fits_the_allowance() -> None:
    source = "{% for m in messages %}{{ m.content | trim | replace('a', 'b') | upper | trim }}{% endfor %}"

    assert len(ChatTemplate(source, TOKENIZER).render([{"role": "user", "content": "a" * 4_000_000}])) == 4_000_000
