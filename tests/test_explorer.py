"""The explorer's views: true to the text, self-contained, and alive in a browser where one is installed."""
import json, math, re, shutil, subprocess
from dataclasses import asdict

import numpy as np
import pytest

from alphabook.engine import Engine
from alphabook.fetch import resolve_model
from alphabook.heat import heat_view, record_routing, unevenness
from alphabook.live import Conversation
from alphabook.rounds import run_round
from alphabook.roofline import Box, needs_of_file, needs_of_shape, predict, roof_view
from alphabook.tracing import round_view, token_view, trace

PROMPT = 'def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n'


@pytest.fixture(scope='module')
def engine(): return Engine.load(resolve_model(None), 'cpu', n_ctx=512)


@pytest.mark.parametrize('drafter', ['none', 'mtp', 'copy', 'auto'])
def test_watching_changes_nothing_and_counts_what_the_engine_counts(engine, drafter):
    t = trace(engine, PROMPT, 40, drafter, warm=False)
    assert t.g.token_ids == engine.generate(PROMPT, 40, drafter='none').token_ids
    assert ''.join(x for x, *_ in t.tokens()) == t.g.text and [who for *_, who, _ in t.tokens()] == t.g.drafters
    assert len(t.steps) == t.g.rounds and sum(len(s.drafts) for s in t.steps) == t.g.drafted
    assert all(s.accepted <= len(s.drafts) and s.round_ms > 0 for s in t.steps)


def test_routing_is_what_the_model_does(engine):
    "Forcing what was recorded gives the logits of the router's own choice; another expert gives others."
    ids = engine.tokenizer.encode(PROMPT)[:12]
    routing = record_routing(engine, ids)
    def rows(change):
        number = iter(range(10**6))
        def route(layer, logits):
            chosen, weights = engine.model.ops.route(logits, engine.cfg.n_used, engine.cfg.renormalise, engine.cfg.expert_scale)
            mine = np.ascontiguousarray(routing[:, next(number)], np.int32)
            assert (mine == chosen).all()
            if change: mine[:, 0] = (mine[:, 0] + 1) % engine.cfg.n_expert
            return mine, weights
        return run_round(engine.model, engine.model.new_cache(16, keep=0), ids, route=None if change is None else route)
    assert rows(None).tobytes() == rows(False).tobytes()
    with pytest.raises(AssertionError): rows(True)             # the next layer's choice depends on it
    facts = unevenness(routing, engine.cfg.n_expert)
    assert 0 < facts['even_half'] <= facts['best_half'] <= 1 and 0 <= facts['again'] <= 1


def test_predictions_by_hand():
    n = needs_of_shape('qwen3-8b')
    box = Box(vram=1000, card=1000, reached=.5, fixed=0, context=0)
    assert math.isclose(predict(n, box)['plain'], 500e9/n.always, rel_tol=1e-12)
    slow = Box(vram=.5, card=1000, ram=50, reached=1, fixed=0, context=0)                       # nothing fits: RAM alone
    assert math.isclose(predict(n, slow)['plain'], 50e9/n.always, rel_tol=1e-12)
    moe = needs_of_shape('qwen3.6-35b-a3b')
    assert predict(moe, Box(vram=12))['plain'] > predict(moe, Box(vram=12, hits=1))['plain'] > predict(moe, Box(vram=6, hits=1))['plain']
    assert predict(moe, Box(vram=80, rate=0, copied=0))['MTP'] < predict(moe, Box(vram=80))['plain']


def views(engine):
    t = trace(engine, PROMPT, 24, 'mtp', warm=False)
    ids = engine.tokenizer.encode(PROMPT)
    return dict(tokens=token_view(t, engine.tokenizer.decode), rounds=round_view(t), roof=roof_view([needs_of_file(engine)]),
                heat=heat_view(record_routing(engine, ids), engine.cfg.n_expert, [engine.tokenizer.decode([i]) for i in ids]))


def test_nothing_is_loaded_from_elsewhere(engine):
    for name, page in views(engine).items():
        assert not re.search(r'https?://|src=|@import|url\(|fetch\(|\bid="', page), name
        for text in re.findall(r'application/json"[^>]*>(.*?)</script>', page, re.S): json.loads(text)


@pytest.mark.skipif(not shutil.which('chromium'), reason='no chromium here')
def test_the_views_live_in_a_browser(engine, tmp_path):
    v = views(engine)
    (tmp_path/'page.html').write_text('<meta charset="utf-8">' + ''.join(v.values()) + v['roof'], encoding='utf-8')    # one of them twice
    run = subprocess.run(['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--virtual-time-budget=3000', '--dump-dom',
                          f'file://{tmp_path}/page.html'], capture_output=True, text=True, timeout=60)
    page = run.stdout
    speed = predict(needs_of_file(engine), Box())['plain']
    assert page.count(f'{round(speed)} tok/s</b>') >= 2 and 'tokens 1 to' in page or re.search(r'tokens \d+ to \d+ of', page)
    assert page.count('data-live="1"') == 4


def test_a_conversation_goes_on_where_it_was(engine):
    "The second turn reads only what is new, and a stopped one leaves a session that is whole."
    talk = Conversation(engine, n=12)
    *_, g = talk.ask('def mean(values):')
    for g in talk.ask('def median(values):'): talk.stopped = True
    assert g.predicted_n == 1
    *_, g = talk.ask('def low(values):')
    talk.messages.pop()
    want = engine.generate(talk.prompt(), 12, drafter='none')
    assert g.token_ids == want.token_ids
