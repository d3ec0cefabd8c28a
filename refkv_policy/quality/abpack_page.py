"""The page that raters open: one file, no network, works with a keyboard, in light and dark."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence

STYLE = """
:root { color-scheme: light dark; font: 1.1rem/1.5 system-ui, sans-serif; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; text-align: center; }
video { width: 100%; background: GrayText; }
button, input { font: inherit; padding: .6rem 1rem; margin: .25rem; }
kbd { border: 1px solid GrayText; border-radius: .2rem; padding: 0 .3rem; }
progress { width: 100%; }
.chosen { outline: 3px solid Highlight; }
[hidden] { display: none; }
"""

SCRIPT = """
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const at = id => document.getElementById(id);
const memory = 'refkv-ab-' + data.pack;
let state = {rater: '', answers: {}};
try { state = JSON.parse(localStorage.getItem(memory)) || state; } catch (_) {}
let number = 1;
const remember = () => { try { localStorage.setItem(memory, JSON.stringify(state)); } catch (_) {} };
const show = n => {
  number = n;
  const video = at('video');
  video.src = 'data:video/mp4;base64,' + data.videos[n - 1];
  video.play().catch(() => {});
  at('count').textContent = `Pair ${n} of ${data.videos.length}`;
  at('progress').value = Object.keys(state.answers).length;
  for (const name of ['left', 'same', 'right']) {
    at(name).classList.toggle('chosen', state.answers[n] === name);
    at(name).setAttribute('aria-pressed', String(state.answers[n] === name));
  }
  at('back').disabled = n === 1;
};
const finish = () => { at('trial').hidden = true; at('end').hidden = false; at('save').focus(); };
const unanswered = () => { for (let n = 1; n <= data.videos.length; n++) if (!state.answers[n]) return n; return 0; };
const answer = name => {
  state.answers[number] = name;
  remember();
  if (number < data.videos.length) show(number + 1);
  else if (unanswered()) show(unanswered());
  else finish();
};
const begin = () => {
  const rater = at('rater').value.trim();
  if (!rater) { at('rater').focus(); return; }
  if (state.rater && state.rater !== rater) state.answers = {};
  state.rater = rater;
  remember();
  at('start').hidden = true;
  if (!unanswered()) { finish(); return; }
  at('trial').hidden = false;
  show(unanswered());
};
const save = () => {
  const file = {format: data.format, kind: data.kind, pack: data.pack, rater: state.rater, answers: state.answers};
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([JSON.stringify(file, null, 1)], {type: 'application/json'}));
  link.download = 'answers-' + state.rater.replace(/[^A-Za-z0-9_-]+/g, '_') + '.json';
  link.click();
};
at('progress').max = data.videos.length;
at('rater').value = state.rater;
at('begin').addEventListener('click', begin);
at('rater').addEventListener('keydown', event => { if (event.key === 'Enter') begin(); });
for (const name of ['left', 'same', 'right']) at(name).addEventListener('click', () => answer(name));
at('back').addEventListener('click', () => show(number - 1));
at('again').addEventListener('click', () => { at('video').currentTime = 0; at('video').play(); });
at('review').addEventListener('click', () => { at('end').hidden = true; at('trial').hidden = false; show(1); });
at('save').addEventListener('click', save);
document.addEventListener('keydown', event => {
  if (at('trial').hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = {ArrowLeft: 'left', '1': 'left', ArrowDown: 'same', '2': 'same', ArrowRight: 'right', '3': 'right'};
  if (keys[event.key]) answer(keys[event.key]);
  else if (event.key === 'Backspace' && number > 1) show(number - 1);
  else if (event.key === 'r') at('again').click();
  else return;
  event.preventDefault();
});
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; media-src data:; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'">
<title>Which one looks worse?</title>
<style>{style}</style>
</head>
<body>
<main>
<section id="start">
<h1>Which one looks worse?</h1>
<p>You will see {count} pairs of short videos. Both of a pair were made from the same input. Say whether one of them is
noticeably worse: smeared, flickering, jumping, broken. Where you would not notice without searching for it, say neither.
Your answers stay on this computer until you save them as a file.</p>
<p><label>Your name or number: <input id="rater" autocomplete="off" maxlength="80"></label>
<button id="begin">Begin</button></p>
</section>
<section id="trial" hidden>
<p id="count" role="status" aria-live="polite"></p>
<progress id="progress" value="0" max="1" aria-label="answered"></progress>
<video id="video" muted loop autoplay playsinline aria-label="two videos side by side"></video>
<p>
<button id="left" aria-pressed="false"><kbd>1</kbd> <kbd>←</kbd> left is worse</button>
<button id="same" aria-pressed="false"><kbd>2</kbd> <kbd>↓</kbd> neither</button>
<button id="right" aria-pressed="false"><kbd>3</kbd> <kbd>→</kbd> right is worse</button>
</p>
<p><button id="back">back (<kbd>Backspace</kbd>)</button> <button id="again">from the start (<kbd>r</kbd>)</button></p>
</section>
<section id="end" hidden>
<h1>Thank you.</h1>
<p><button id="save">Save the answers</button> <button id="review">Look again</button></p>
<p>Send the saved file to whoever gave you this page.</p>
</section>
<noscript><p>This page needs JavaScript; it loads nothing from anywhere.</p></noscript>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(pack: str, videos: Sequence[str], kind: str, version: int = 1) -> str:
    """The whole page. videos: MP4 files in base64, in order. It holds nothing that tells which side is which."""
    data = {"pack": pack, "videos": list(videos), "kind": kind, "format": version}
    return PAGE.format(
        style=STYLE,
        style_hash=_hash(STYLE),
        script=SCRIPT,
        script_hash=_hash(SCRIPT),
        count=html.escape(str(len(videos))),
        data=json.dumps(data).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
    )


def _hash(text: str) -> str:
    """As a Content-Security-Policy names an inline element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
