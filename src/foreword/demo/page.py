"""The claims as one page that needs nothing else: no script, no font, no picture from elsewhere."""

from collections.abc import Sequence
from html import escape

from foreword.demo.claim import Bar, Claim

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5d6875; --paper: #fbfaf7; --line: #dcd8cf;
  --bar: #b8862b; --rest: #aab4be; --good: #1f7a4d; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6e1; --dim: #9aa5b1; --paper: #14181d; --line: #313840;
  --bar: #d9a441; --rest: #56626e; --good: #5cc28f; --bad: #ff8a80; } }
body { font: 16px/1.5 Georgia, "Times New Roman", serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 3rem auto; padding: 0 1.5rem; }
h1 { font-weight: normal; margin: 0; }
p.about { color: var(--dim); margin: .3rem 0 2rem; }
section { border-top: 1px solid var(--line); padding: 1.1rem 0;
  display: grid; grid-template-columns: minmax(0, 1fr) 20rem; gap: 0 2rem; }
h2 { font-size: 1.05rem; margin: 0 0 .3rem; }
dl { margin: 0; display: grid; grid-template-columns: 6rem 1fr; }
dt { color: var(--dim); }
dd { margin: 0; }
.ok { color: var(--good); }
.off { color: var(--bad); }
.note { color: var(--dim); font-size: .9rem; margin: .3rem 0 0; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .name { fill: var(--dim); }
svg .bar { fill: var(--bar); }
svg .first { fill: var(--rest); }
@media (max-width: 48rem) { section { grid-template-columns: 1fr; } svg { margin-top: .6rem; max-width: 24rem; } }
"""
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>foreword: the claims, measured</title><style>{style}</style></head>
<body><h1>The claims, measured</h1><p class="about">{about}</p>
"""
_SECTION = """<section><div><h2>{claim}</h2>
<dl><dt>expected</dt><dd>{expected}</dd><dt>measured</dt><dd>{measured} · {verdict}</dd></dl>{note}</div>
<div>{bars}</div></section>
"""
_WIDTH, _NAME, _SHOWN, _ROW = 320, 96, 84, 24


def page(claims: Sequence[Claim], about: str) -> str:
    """A whole HTML document; `about` says what was measured, on what."""
    held = sum(claim.ok for claim in claims)
    head = _HEAD.format(style=_STYLE, about=f"{escape(about)} · {held} of {len(claims)} hold")
    return head + "".join(_section(claim) for claim in claims) + "</body></html>\n"


def _section(claim: Claim) -> str:
    return _SECTION.format(
        claim=escape(claim.claim),
        expected=escape(claim.expected),
        measured=escape(claim.measured),
        verdict='<span class="ok">holds</span>' if claim.ok else '<span class="off">is off</span>',
        note=f'<p class="note">{escape(claim.note)}</p>' if claim.note else "",
        bars=_bars(claim),
    )


def _bars(claim: Claim) -> str:
    """Bars beside one another, the longest as wide as there is room."""
    if not claim.bars:
        return ""
    most = max(bar.value for bar in claim.bars) or 1
    height = _ROW * len(claim.bars)
    rows = "".join(_bar(bar, number, most) for number, bar in enumerate(claim.bars))
    label = escape("; ".join(f"{bar.name}: {bar.shown}" for bar in claim.bars), quote=True)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{rows}</svg>'


def _bar(bar: Bar, number: int, most: float) -> str:
    room = _WIDTH - _NAME - _SHOWN
    width = max(1.0, bar.value / most * room)
    top, middle = number * _ROW + 4, number * _ROW + _ROW / 2 + 4
    kind = "first" if number == 0 else "bar"
    return (
        f'<text class="name" x="{_NAME - 6}" y="{middle}" text-anchor="end">{escape(bar.name)}</text>'
        f'<rect class="{kind}" x="{_NAME}" y="{top}" width="{width:.1f}" height="{_ROW - 8}" rx="2"/>'
        f'<text x="{_NAME + width + 6:.1f}" y="{middle}">{escape(bar.shown)}</text>'
    )
