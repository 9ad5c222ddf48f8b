"""Texts that would act where they are shown, unless whoever shows them prevents it."""

from __future__ import annotations

import re
from typing import Final

FORGED: Final = "Error: forged"
"""What a line must not begin with: it would pass for one of ours."""
OWNED: Final = "window.owned"

TERMINAL: Final = {
    "colour": "\x1b[31mred\x1b[0m",
    "clear": "\x1b[2J\x1b[H\x1b[?1049h",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;ZWNobyBvd25lZA==\x07",
    "device control": "\x1bP+q544e\x1b\\",
    "C1": "\x9b31mred\x9b0m\x9d52;c;ZWNobw==\x9c\x90",
    "bell, backspace and delete": "good\x07\x08\x08\x08\x08evil\x7f",
    "carriage return": f"good\r{FORGED}",
    "newline": f"good\n{FORGED}",
    "tab and feeds": "a\tb\x0bc\x0cd\x85e",
    "nothing": "a\0b",
}
BIDIRECTIONAL: Final = {
    "override": "\u202egpj.exe\u202c",
    "isolates": "\u2066a\u2067b\u2068c\u2069",
    "marks": "\u200ea\u200fb\u061c",
    "zero width": "a\u200bb\u200cc\u200dd\u2060e\ufefff",
    "separators": f"a\u2028{FORGED}\u2029{FORGED}",
    "tags": "a\U000e0041\U000e0042",
    "combining": "Z" + "\u0301\u0353\u0489" * 200,
}
MARKUP: Final = {
    "script": f"</script><script>{OWNED}=1</script>",
    "image": f'"><img class="owned" src="x" onerror="{OWNED}=1">',
    "attribute": f"' onmouseover='{OWNED}=1' class=owned x=\"",
    "style": "</style><style>body{display:none}</style><!--",
    "entities": "&lt;b&gt; &amp;amp; &#x1b;[31m &quot;",
    "plotly": f'<b>bold</b><br><a class="owned" href="javascript:{OWNED}=1">x</a><span style="font-size:900px">%{{x}}',
    "rich": "[red]x[/red] [link=http://evil.example]y[/link] [/] [bold",
    "markdown": "|a|`b`|[x](javascript:alert(1))|![y](http://evil.example/z.png)",
}
FORMATS: Final = {
    "label": 'a"} 1\n# HELP forged_total x\nforged_total{b="',
    "backslashes": '\\ \\n \\" \\x1b[31m \\u202e \\',
    "JSON": '"}],"traceEvents":[{"ph":"X',
    "SQL": "'); DROP TABLE slice; --",
    "templates": "{} {0} {caps} %s %(a)s ${HOME} $(id) `id` %n",
    "paths": "../../../../etc/passwd",
    "empty": "",
    "blanks": " \u00a0\u3000 ",
    "surrogates": "\ud800 \udc9b31m \udfff",
    "wide": "\U0001f468\u200d\U0001f469\u200d\U0001f467 漢字 ﷽",
    "long": "long" * 5_000,
    "longer": "\x1b[5m" * 50_000,
    "longest": "x" * 1_000_000,
}
EVERY: Final = TERMINAL | BIDIRECTIONAL | MARKUP | FORMATS

OBEYED: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What no output to a terminal may hold, beside the line breaks and colours of our own."""
FLOOD: Final = re.compile("[\u0300-\u036f\u0483-\u0489]{5}")
"""More marks over one letter than any script has: they cover the lines above."""


def obeyed(text: str) -> str | None:
    """What of a text a terminal would obey, or hide, and where."""
    found = OBEYED.search(text) or FLOOD.search(text)
    return None if found is None else f"{found[0]!r} in {text[max(0, found.start() - 40) : found.end() + 20]!r}"
