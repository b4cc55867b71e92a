"""The server, as its clients see it: one process with the bundled model, the official clients, and raw HTTP for what they can't send."""
import http.client, json, os, signal, socket, subprocess, sys, threading, time

import pytest

from conftest import ROOT

pytest.importorskip("fastapi"); pytest.importorskip("uvicorn")
MODEL, KEY = ROOT / "data/models/alphabook-mini.gguf", "a-secret"

def start(*flags, model=MODEL):
    "A server process, and its address once it is ready."
    p = subprocess.Popen([sys.executable, "-m", "alphabook", "serve", "-m", str(model), "--port", "0", *map(str, flags)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen = []
    for line in p.stderr:
        seen.append(line)
        if line.startswith("READY "): break
    else: pytest.fail("the server did not start: " + "".join(seen))
    drain = threading.Thread(target=lambda: [seen.append(x) for x in p.stderr], daemon=True); drain.start()
    p.seen, p.drain = seen, drain
    return p, line.split()[1].removeprefix("http://")

def with_template(path, source):
    "A copy of the model with another chat template."
    from alphabook.modelfile import ModelFile, write_gguf
    with ModelFile(MODEL) as mf:
        meta = dict(mf.meta) | {"tokenizer.chat_template": source}
        write_gguf(path, meta, [(t.name, t.shape, t.type.name, t.data) for t in mf.tensors.values()])
    return path

@pytest.fixture(scope="module")
def log(tmp_path_factory): return tmp_path_factory.mktemp("log") / "requests.jsonl"

@pytest.fixture(scope="module")
def server(log):
    p, address = start("--api-key", KEY, "--queue", 6, "--parallel", 2, "--ctx", 2048, "--log", log)
    yield address
    p.send_signal(signal.SIGTERM)
    assert p.wait(30) == 0, "".join(p.seen)
    p.drain.join()
    assert not any("Traceback" in line for line in p.seen), "".join(p.seen)

@pytest.fixture(scope="module")
def engine():
    from alphabook import Engine
    return Engine.load(MODEL)

def ask(address, method, path, body=None, headers=(), key=KEY, raw=None):
    "(status, answer) of one request."
    c = http.client.HTTPConnection(address, timeout=300)
    h = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {}), **dict(headers)}
    c.request(method, path, json.dumps(body).encode() if raw is None and body is not None else raw, h)
    r = c.getresponse(); data = r.read(); c.close()
    return r.status, json.loads(data) if r.headers.get_content_type() == "application/json" else data.decode()

def post(address, path, **body): return ask(address, "POST", path, body)

def events(address, path, **body):
    "The events of a stream, as they were sent; each must be valid UTF-8."
    c = http.client.HTTPConnection(address, timeout=300)
    c.request("POST", path, json.dumps(body | dict(stream=True)), {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
    r = c.getresponse()
    assert r.status == 200 and r.headers.get_content_type() == "text/event-stream"
    return [e.decode("utf-8") for e in r.read().split(b"\n\n") if e]

def counters(address):
    "Numbers of /metrics."
    text = ask(address, "GET", "/metrics")[1]
    return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}

def until(condition, seconds=30.0):
    "Wait for a condition; how long it took."
    begun = time.perf_counter()
    while not condition():
        assert time.perf_counter() - begun < seconds, "it did not happen"
        time.sleep(0.02)
    return time.perf_counter() - begun

CHAT = [dict(role="system", content="Be brief."), dict(role="user", content="What is a list in Python?")]
PROMPT = 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n'

def chat_ids(engine, messages=CHAT): return engine.tokenizer.encode(engine.chat_template().render(messages), add_special=False)

@pytest.fixture(scope="module")
def openai_client(server):
    return pytest.importorskip("openai").OpenAI(base_url=f"http://{server}/v1", api_key=KEY, max_retries=0)

@pytest.fixture(scope="module")
def anthropic_client(server):
    return pytest.importorskip("anthropic").Anthropic(base_url=f"http://{server}", api_key=KEY, max_retries=0)

# ---- texts

def test_texts_are_the_engines(server, engine, openai_client):
    c, want = openai_client, engine.generate(chat_ids(engine), n=40)
    answer = c.chat.completions.create(model="any", messages=CHAT, max_tokens=40, temperature=0)
    assert answer.choices[0].message.content == want.text and answer.choices[0].finish_reason == want.finish_reason
    assert answer.usage.prompt_tokens == want.prompt_n and answer.usage.completion_tokens == want.predicted_n
    t = answer.timings
    assert t["cache_n"] + t["prompt_n"] == want.prompt_n and t["predicted_n"] == want.predicted_n
    assert {"prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second", "rounds", "drafted", "accepted", "by_drafter"} <= set(t)
    want = engine.generate(PROMPT, n=60)
    answer = c.completions.create(model="any", prompt=PROMPT, max_tokens=60, temperature=0)
    assert answer.choices[0].text == want.text
    by_ids = c.completions.create(model="any", prompt=engine.tokenizer.encode(PROMPT), max_tokens=60, temperature=0)
    assert by_ids.choices[0].text == want.text

def test_streams_join_to_the_text(server, engine, openai_client):
    want = engine.generate(chat_ids(engine), n=40)
    chunks = list(openai_client.chat.completions.create(model="x", messages=CHAT, max_tokens=40, stream=True,
                                                        stream_options=dict(include_usage=True)))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == want.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [want.finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == want.predicted_n
    text = "".join(c.choices[0].text for c in openai_client.completions.create(
        model="x", prompt=PROMPT, max_tokens=60, stream=True) if c.choices)
    assert text == engine.generate(PROMPT, n=60).text

def test_sampling_is_the_engines_and_choices_have_seeds_in_order(server, engine):
    how = dict(temp=0.9, top_p=0.9, top_k=50, min_p=0.01)
    status, answer = post(server, "/v1/completions", prompt=PROMPT, max_tokens=20, temperature=0.9, top_p=0.9, top_k=50,
                          min_p=0.01, seed=7, n=2)
    assert status == 200
    assert [c["text"] for c in answer["choices"]] == [engine.generate(PROMPT, n=20, seed=s, **how).text for s in (7, 8)]
    assert answer["timings"]["seed"] == 7

def test_stop_strings_that_span_tokens(server, engine):
    text = engine.generate(PROMPT, n=60).text
    stop = text[30:37]
    for stream in (False, True):
        if stream:
            sent = [json.loads(e[6:]) for e in events(server, "/v1/completions", prompt=PROMPT, max_tokens=60, stop=[stop, "never"])[:-1]]
            got, reason = "".join(e["choices"][0]["text"] for e in sent), sent[-1]["choices"][0]["finish_reason"]
        else:
            choice = post(server, "/v1/completions", prompt=PROMPT, max_tokens=60, stop=stop)[1]["choices"][0]
            got, reason = choice["text"], choice["finish_reason"]
        assert got == text[:text.index(stop)] and reason == "stop"

def test_characters_are_never_broken(server, engine):
    "Bytes of emoji and of invalid UTF-8, forced token by token (llama.cpp#11738)."
    from alphabook.steering import penalties
    tk = engine.tokenizer
    raw = [i for i in range(tk.n_vocab) if len(tk.token_bytes(i)) == 1]
    ids = {tk.token_bytes(i)[0]: i for i in raw}
    prompt = [ids[b] for b in "😊é".encode() + b"\xc0\x80\xed\xa0\x80ok"]
    status, answer = post(server, "/detokenize", tokens=prompt)
    assert status == 200 and answer["content"].startswith("😊é") and answer["content"].endswith("ok")
    high = {str(ids[b]): 100 for b in (0xF0, 0x9F, 0x98, 0x8A) if b in ids}        # nothing but parts of characters
    for temperature in (0, 1.5):
        sent = events(server, "/v1/completions", prompt=[5], max_tokens=12, logit_bias=high, temperature=temperature, seed=1)
        text = "".join(json.loads(e[6:])["choices"][0]["text"] for e in sent[:-1])
        whole = post(server, "/v1/completions", prompt=[5], max_tokens=12, logit_bias=high, temperature=temperature, seed=1)[1]
        said = engine.generate([5], n=12, steer=penalties([], bias={int(i): v for i, v in high.items()}),
                               **(dict(temp=1.5, seed=1) if temperature else {})).token_ids
        assert text == whole["choices"][0]["text"] == tk.decode_bytes(said).decode("utf-8", "replace") != ""

def test_a_conversation_that_goes_on_is_not_read_again(server, engine):
    talk = [dict(role="user", content="Tell me about lists. " + "They hold things in order. " * 30)]
    first = post(server, "/v1/chat/completions", messages=talk, max_tokens=10)[1]
    talk += [dict(role="assistant", content=first["choices"][0]["message"]["content"]), dict(role="user", content="And sets?")]
    then = post(server, "/v1/chat/completions", messages=talk, max_tokens=10)[1]
    assert then["timings"]["cache_n"] > 0.8 * first["usage"]["prompt_tokens"]
    assert then["usage"]["prompt_tokens_details"]["cached_tokens"] == then["timings"]["cache_n"]
    assert then["choices"][0]["message"]["content"] == engine.generate(chat_ids(engine, talk), n=10).text

def test_logprobs_with_drafts_are_those_without(server, engine):
    from alphabook.steering import log_probs
    rows = []
    want = engine.generate(chat_ids(engine), n=16, drafter="none", watch=lambda row, id: rows.append(log_probs(row, id, 3)))
    choice = post(server, "/v1/chat/completions", messages=CHAT, max_tokens=16, logprobs=True, top_logprobs=3)[1]["choices"][0]
    got = choice["logprobs"]["content"]
    assert [e["logprob"] for e in got] == [r[0] for r in rows][:len(got)] and len(got) >= want.predicted_n - 1
    assert all([t["logprob"] for t in e["top_logprobs"]] == [v for _, v in r[1]] for e, r in zip(got, rows))
    sent = [json.loads(e[6:])["choices"][0] for e in
            events(server, "/v1/chat/completions", messages=CHAT, max_tokens=16, logprobs=True)[:-1]]
    assert [e["logprob"] for c in sent for e in ((c["logprobs"] or {}).get("content") or [])] == [e["logprob"] for e in got]

def test_neighbours_change_no_text(server, engine):
    prompts = [PROMPT, "import os\n", "The list is", "class Stack:\n", "# A queue\n", "for i in"]
    out = {}
    def one(p): out[p] = post(server, "/v1/completions", prompt=p, max_tokens=24)
    threads = [threading.Thread(target=one, args=(p,)) for p in prompts]
    for t in threads: t.start()
    for t in threads: t.join()
    for p in prompts: assert out[p][0] == 200 and out[p][1]["choices"][0]["text"] == engine.generate(p, n=24).text, p

# ---- form

def test_json_schema_is_held_to_or_refused(server, openai_client):
    pytest.importorskip("llguidance")
    schema = dict(type="object", required=["title", "year"], additionalProperties=False,
                  properties=dict(title=dict(type="string", maxLength=12), year=dict(type="integer", minimum=1900, maximum=2100)))
    form = dict(type="json_schema", json_schema=dict(name="book", schema=schema))
    for how in (dict(temperature=0), dict(temperature=1.0, seed=3)):
        answer = openai_client.chat.completions.create(model="x", messages=CHAT, max_tokens=80, response_format=form, **how)
        book = json.loads(answer.choices[0].message.content)
        assert set(book) == {"title", "year"} and 1900 <= book["year"] <= 2100 and len(book["title"]) <= 12
    for bad in (dict(type="nonsense"), {"not": {}}):
        form = dict(type="json_schema", json_schema=dict(name="x", schema=bad))
        status, answer = post(server, "/v1/chat/completions", messages=CHAT, response_format=form)
        assert status == 400 and answer["error"]["code"] == "invalid_schema"

CITY = dict(type="object", required=["city"], additionalProperties=False, properties=dict(city=dict(type="string", maxLength=9)))
TOOLS = [dict(type="function", function=dict(name="weather", parameters=CITY)), dict(type="function", function=dict(name="now"))]

def test_a_call_that_must_come(server, openai_client):
    pytest.importorskip("llguidance")
    ask_for = dict(model="x", messages=CHAT, tools=TOOLS, max_tokens=80, temperature=1.2)
    for choice, names in (("required", {"weather", "now"}), (dict(type="function", function=dict(name="weather")), {"weather"})):
        for seed in (1, 2):
            choice_ = openai_client.chat.completions.create(**ask_for, tool_choice=choice, seed=seed).choices[0]
            call = choice_.message.tool_calls[0].function
            assert choice_.finish_reason == "tool_calls" and not choice_.message.content and call.name in names
            arguments = json.loads(call.arguments)
            assert call.name == "now" or set(arguments) == {"city"} and len(arguments["city"]) <= 9
            chunks = list(openai_client.chat.completions.create(**ask_for, tool_choice=choice, seed=seed, stream=True))
            sent = [d for c in chunks if c.choices for d in c.choices[0].delta.tool_calls or []]
            assert sent[0].function.name == call.name and "".join(d.function.arguments for d in sent) == call.arguments
    import anthropic
    client = anthropic.Anthropic(base_url=f"http://{server}", api_key=KEY, max_retries=0)
    tools = [dict(name=t["function"]["name"], input_schema=t["function"].get("parameters", dict(type="object"))) for t in TOOLS]
    for choice in (dict(type="any"), dict(type="tool", name="weather")):
        answer = client.messages.create(model="x", messages=CHAT[1:], tools=tools, max_tokens=80, tool_choice=choice)
        assert answer.stop_reason == "tool_use" and answer.content[0].type == "tool_use" and answer.content[0].name in ("weather", "now")
    bad = [dict(type="function", function=dict(name="f", parameters=dict(type="nonsense")))]
    status, answer = post(server, "/v1/chat/completions", messages=CHAT, tools=bad, tool_choice="required")
    assert status == 400 and (answer["error"]["param"], answer["error"]["code"]) == ("tools", "invalid_schema")

def test_tools_on_a_template_that_knows_none_and_calls_of_what_is_not_there(tmp_path_factory):
    "The model is told of them; what calls a function that nobody offered is text."
    from alphabook.answers import AnswerReader
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    p, address = start("--ctx", 1024, "--api-key", KEY, model=with_template(tmp_path_factory.mktemp("deaf") / "deaf.gguf", source))
    try:
        talk = [*CHAT, dict(role="assistant", tool_calls=[dict(id="1", function=dict(name="now", arguments="{}"))]), dict(role="tool", content="noon", tool_call_id="1")]
        prompt = post(address, "/apply-template", messages=talk, tools=TOOLS)[1]["prompt"]
        assert all(json.dumps(t) in prompt for t in TOOLS) and '<tool_call>\n{"name": "now"' in prompt and "user: <tool_response>\nnoon" in prompt
        assert post(address, "/apply-template", messages=CHAT, tools=TOOLS, tool_choice="none")[1]["prompt"].count("tool") == 0
        answer = post(address, "/v1/chat/completions", messages=talk, tools=TOOLS, tool_choice="required", max_tokens=60)[1]
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] in ("now", "weather")
    finally: p.kill()
    call = '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>'
    assert AnswerReader(tools={"now"}).push(call, final=True) == [("content", call)]

def strict(*tools): return [dict(t, function=dict(t["function"], strict=True)) for t in tools]

@pytest.mark.parametrize("opened", [False, True])
def test_a_strict_function_is_held_to_its_schema_if_it_is_called(engine, opened):
    "Whatever a model would like to say, what is read as a call fits. Through every interface, with a thought before it or not."
    pytest.importorskip("llguidance")
    from types import SimpleNamespace
    import numpy as np
    from alphabook.answers import read_answer
    from alphabook.anthropic_api import MessagesRequest, messages_wishes
    from alphabook.openai_api import ChatRequest, chat_wishes
    from alphabook.responses_api import ResponsesRequest, responses_wishes
    from alphabook.service import Service
    service = Service(SimpleNamespace(state="ready", engine=engine, n_ctx=1024))
    service.ready(); service.close()
    class Said:
        source = "<tool_call> tools <think>"
        def render(self, messages, tools, **more): return f"{json.dumps(tools)}\nassistant:" + "<think>\n"*opened
    service.template = Said()
    tool = dict(name="weather", input_schema=CITY, strict=True)
    bodies = [(chat_wishes, ChatRequest(messages=CHAT, tools=strict(*TOOLS[:1]), max_tokens=400)),
              (messages_wishes, MessagesRequest(messages=CHAT[1:], max_tokens=400, tools=[tool])),
              (responses_wishes, ResponsesRequest(input="x", max_output_tokens=400, tools=[dict(type="function", name="weather", parameters=CITY, strict=True)]))]
    tk, seen = engine.tokenizer, []
    thought = "</think>\n\n"*opened
    likes = ['<tool_call>\n{"name": "weather", "arguments": {"town": 5}}\n</tool_call>', 'So:\n<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>',
             '{"name": "weather", "arguments": {}}', "<function=weather>{}</function>", '<tool_call>\n{"arguments": {"city": "x", "y": 1}, "name": "weather"}\n</tool_call>',
             '<think>x</think>\n{"name": "weather", "arguments": {}}']
    for wishes, body in bodies:
        [wish], was_opened, names = wishes(service, body)
        assert '"strict"' not in tk.decode(wish.ids) and wish.free and was_opened == opened and names == {"weather"}
        for like in likes:
            [job] = service.jobs(wish)
            said, wants, rng = [], tk.encode(thought + like, add_special=False), np.random.default_rng(len(like))
            while len(said) < 120:
                row = rng.normal(size=engine.cfg.n_vocab).astype(np.float32)
                row[min(tk.eog_ids)] = 5
                if wants: row[wants.pop(0)] = 100
                id = int(np.argmax(job.steer(row, said)))
                if id in tk.eog_ids: break
                said.append(id)
            calls = read_answer(tk.decode(said), opened, names)["calls"]
            seen += calls
            for call in calls: assert call["name"] == "weather" and set(call["arguments"]) == {"city"} and len(call["arguments"]["city"]) <= 9
    assert len(seen) > 5
    [wish], *_ = chat_wishes(service, ChatRequest(messages=CHAT, tools=TOOLS))
    assert wish.form is None                                    # nothing is strict, nothing is held

def test_strict_where_it_cant_be_kept(server, engine, tmp_path_factory):
    for wrong in (dict(TOOLS[0]["function"], strict="yes"), dict(name="f", parameters=dict(type="nonsense"), strict=True)):
        status, answer = post(server, "/v1/chat/completions", messages=CHAT, tools=[dict(type="function", function=wrong)], max_tokens=3)
        assert status == 400 and answer["error"]["param"] == "tools", answer
    assert post(server, "/v1/chat/completions", messages=CHAT, tools=strict(*TOOLS), max_tokens=9)[0] == 200
    source = "{% if tools %}[TOOLS]{{ tools }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    p, address = start("--ctx", 1024, "--api-key", KEY, model=with_template(tmp_path_factory.mktemp("other") / "other.gguf", source))
    try:
        status, answer = post(address, "/v1/chat/completions", messages=CHAT, tools=strict(*TOOLS), max_tokens=9)
        assert (status, answer["error"]["code"]) == (400, "unsupported_parameter") and "form that isn't known" in answer["error"]["message"]
        assert post(address, "/v1/chat/completions", messages=CHAT, tools=TOOLS, max_tokens=9)[0] == 200
        assert post(address, "/v1/chat/completions", messages=CHAT, tools=strict(*TOOLS), max_tokens=60, tool_choice="required")[0] == 200
    finally: p.kill()

def test_several_prompts_in_one_request(server, engine, openai_client):
    prompts = [PROMPT, "import os\n", PROMPT]
    want = [engine.generate(p, n=12).text for p in prompts]
    answer = openai_client.completions.create(model="x", prompt=prompts, max_tokens=12, temperature=0)
    assert [(c.index, c.text) for c in answer.choices] == list(enumerate(want))
    assert answer.usage.prompt_tokens == sum(len(engine.tokenizer.encode(p)) for p in prompts)
    texts = [""] * 3
    for c in openai_client.completions.create(model="x", prompt=prompts, max_tokens=12, temperature=0, stream=True):
        for choice in c.choices: texts[choice.index] += choice.text
    assert texts == want
    ids = [engine.tokenizer.encode(p) for p in prompts[:2]]
    answer = openai_client.completions.create(model="x", prompt=ids, max_tokens=12, temperature=0.8, seed=3, n=2)
    assert [c.text for c in answer.choices] == [engine.generate(p, n=12, temp=0.8, seed=s).text for p in ids for s in (3, 4)]
    listed = openai_client.completions.create(model="x", prompt=PROMPT, max_tokens=12, logprobs=1).choices[0].logprobs
    assert listed.text_offset == [len("".join(listed.tokens[:i])) for i in range(len(listed.tokens))]
    sent = [c.choices[0].logprobs for c in openai_client.completions.create(model="x", prompt=PROMPT, max_tokens=12, logprobs=1, stream=True) if c.choices]
    assert [n for part in sent if part for n in part.text_offset] == listed.text_offset

def test_forms_by_all_their_names(server, openai_client, anthropic_client):
    "What llama.cpp, vLLM, SGLang and Anthropic call a form is held to as well, in chats and completions; what can't be is refused."
    pytest.importorskip("llguidance")
    import re
    code, chat = r"[A-F]{2}-\d{3}", dict(messages=CHAT, max_tokens=60, temperature=1.5, seed=1)
    asks = [dict(response_format=dict(type="regex", pattern=code)), dict(regex=code), dict(guided_regex=code), dict(structured_outputs=dict(regex=code))]
    said = {openai_client.chat.completions.create(model="x", extra_body=ask_for, **chat).choices[0].message.content for ask_for in asks}
    said |= {openai_client.completions.create(model="x", prompt="x", max_tokens=60, temperature=1.5, seed=1, extra_body=a).choices[0].text for a in asks[1:3]}
    assert said and all(re.fullmatch(code, text) for text in said)
    for more in (dict(json_schema=CITY), dict(guided_json=json.dumps(CITY)), dict(structured_outputs=dict(json=CITY))):
        assert set(json.loads(post(server, "/v1/completions", prompt="x", max_tokens=60, **more)[1]["choices"][0]["text"])) == {"city"}
    assert post(server, "/v1/chat/completions", **chat, guided_choice=["yes", "no"])[1]["choices"][0]["message"]["content"] in ("yes", "no")
    for more in (dict(output_config=dict(format=dict(type="json_schema", schema=CITY))), dict(output_format=dict(type="json_schema", schema=CITY))):
        answer = anthropic_client.messages.create(model="x", messages=CHAT[1:], max_tokens=60, extra_body=more)
        assert set(json.loads(answer.content[0].text)) == {"city"}
    for more in (dict(regex="(?=a)b"), dict(regex="["), dict(guided_json="{"), dict(json_schema=dict(type="x")), dict(guided_grammar="root ::= x"), dict(grammar="x"),
                 dict(structured_outputs=dict(grammar="x")), dict(guided_choice=[]), dict(regex="a", response_format=dict(type="json_object"))):
        for path, body in (("/v1/completions", dict(prompt="x")), ("/v1/chat/completions", dict(messages=CHAT)), ("/v1/responses", dict(input="x")),
                           ("/v1/messages", dict(messages=CHAT[1:], max_tokens=9))):
            if path != "/v1/responses" or "response_format" not in more: assert post(server, path, **body, **more)[0] == 400, (path, more)

def test_an_answer_that_was_begun_goes_on(server, engine, openai_client, anthropic_client):
    "Anthropic's clients put first words into the model's mouth; so does llama.cpp's server."
    prompt = engine.chat_template().render(CHAT) + "A list is"
    want = engine.generate(engine.tokenizer.encode(prompt, add_special=False), n=20).text
    talk = [*CHAT, dict(role="assistant", content="A list is")]
    assert openai_client.chat.completions.create(model="x", messages=talk, max_tokens=20, temperature=0).choices[0].message.content == want
    assert anthropic_client.messages.create(model="x", system=CHAT[0]["content"], messages=talk[1:], max_tokens=20).content[0].text == want
    assert post(server, "/apply-template", messages=talk)[1]["prompt"] == prompt

def test_numbers_that_json_does_not_have(server):
    status, answer = ask(server, "POST", "/v1/responses", raw=b'{"input": "x", "max_output_tokens": 2, "metadata": {"a": NaN, "b": [1e999]}}')
    def never(name): raise AssertionError(name)
    assert status == 200 and json.loads(json.dumps(answer), parse_constant=never)["metadata"] == dict(a=None, b=[None])

# ---- thoughts

@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    "A server whose model begins with a thought, as its template says."
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: {% if enable_thinking is undefined or enable_thinking %}<think>\n{% endif %}"
    p, address = start("--api-key", KEY, "--ctx", 2048, model=with_template(tmp_path_factory.mktemp("thinker") / "thinker.gguf", source))
    yield address
    p.send_signal(signal.SIGTERM); p.wait(30)

def test_thoughts_leave_room_for_an_answer(thinker):
    for n, more in ((60, {}), (60, dict(thinking_budget=5)), (200, dict(temperature=1.0, seed=1))):
        answer = post(thinker, "/v1/chat/completions", messages=CHAT, max_tokens=n, logit_bias={"0": -100, "2": -100}, **more)[1]
        message, k = answer["choices"][0]["message"], answer["usage"]["completion_tokens"]
        assert k == n and message["reasoning_content"] and message["content"], answer
        assert "<think>" not in message["content"] and "</think>" not in message["content"] + message["reasoning_content"]
        if more.get("thinking_budget"): assert len(message["reasoning_content"]) < 60 < len(message["content"])
        sent = [json.loads(e[6:])["choices"][0]["delta"] for e in events(thinker, "/v1/chat/completions", messages=CHAT, max_tokens=n,
                                                                        logit_bias={"0": -100, "2": -100}, **more)[:-1]]
        for kind in ("reasoning_content", "content"): assert "".join(d.get(kind) or "" for d in sent) == message[kind]
    import anthropic
    client = anthropic.Anthropic(base_url=f"http://{thinker}", api_key=KEY, max_retries=0)
    blocks = client.messages.create(model="x", messages=CHAT[1:], max_tokens=60, thinking=dict(type="enabled", budget_tokens=8)).content
    assert [b.type for b in blocks] == ["thinking", "text"] and len(blocks[0].thinking) < 80
    assert client.messages.create(model="x", messages=CHAT[1:], max_tokens=9, thinking=dict(type="disabled")).content[0].type == "text"

def test_a_schema_and_a_call_hold_behind_a_thought(thinker):
    pytest.importorskip("llguidance")
    form = dict(type="json_schema", json_schema=dict(name="city", schema=CITY))
    for how in (dict(temperature=0), dict(temperature=1.0, seed=3)):
        message = post(thinker, "/v1/chat/completions", messages=CHAT, max_tokens=120, response_format=form, **how)[1]["choices"][0]["message"]
        assert message["reasoning_content"] and set(json.loads(message["content"])) == {"city"}
        message = post(thinker, "/v1/chat/completions", messages=CHAT, max_tokens=120, tools=TOOLS, tool_choice="required", **how)[1]["choices"][0]["message"]
        assert message["reasoning_content"] and message["tool_calls"][0]["function"]["name"] in ("weather", "now")

def test_tokens_and_templates(server, engine):
    ids = engine.tokenizer.encode("héllo <|im_end|>", add_special=False)
    assert post(server, "/tokenize", content="héllo <|im_end|>")[1] == dict(tokens=ids)
    pieces = post(server, "/tokenize", content="hi 😊", with_pieces=True)[1]["tokens"]
    assert [p["id"] for p in pieces] == engine.tokenizer.encode("hi 😊", add_special=False)
    assert post(server, "/detokenize", tokens=ids)[1] == dict(content="héllo <|im_end|>")
    assert post(server, "/apply-template", messages=CHAT)[1] == dict(prompt=engine.chat_template().render(CHAT))

def test_state(server, openai_client):
    assert ask(server, "GET", "/health", key=None) == (200, dict(status="ok"))
    card = openai_client.models.list().data[0]
    assert card.id == "alphabook-mini" and openai_client.models.retrieve(card.id).id == card.id
    props = ask(server, "GET", "/props")[1]
    assert props["default_generation_settings"]["n_ctx"] == 2048 and str(ROOT) not in json.dumps(props)
    before = counters(server)
    post(server, "/v1/completions", prompt="x", max_tokens=3)
    after = counters(server)
    assert after['alphabook_requests_total{end="finished"}'] == before['alphabook_requests_total{end="finished"}'] + 1
    assert 1 <= after["alphabook_predicted_tokens_total"] - before["alphabook_predicted_tokens_total"] <= 3

# ---- Anthropic's interface

def test_messages(server, engine, anthropic_client):
    c, ask_for = anthropic_client, dict(model="x", system=CHAT[0]["content"], messages=CHAT[1:], max_tokens=40)
    want = engine.generate(chat_ids(engine), n=40)
    answer = c.messages.create(**ask_for)
    assert [b.text for b in answer.content] == [want.text] and answer.stop_reason == {"length": "max_tokens"}.get(want.finish_reason, "end_turn")
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == want.prompt_n
    assert answer.usage.output_tokens == want.predicted_n
    with c.messages.stream(**ask_for) as stream:
        assert "".join(stream.text_stream) == want.text
        assert stream.get_final_message().usage.output_tokens == want.predicted_n
    stop = want.text[10:14]
    answer = c.messages.create(**ask_for, stop_sequences=[stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == want.text[:want.text.index(stop)]
    del ask_for["max_tokens"]
    assert c.messages.count_tokens(**ask_for).input_tokens == want.prompt_n

def test_errors_of_messages(server, anthropic_client):
    import anthropic
    hi = [dict(role="user", content="hi")]
    for bad in (dict(messages=hi), dict(messages=[], max_tokens=5), dict(messages=hi, max_tokens=0),
                dict(messages=[dict(role="system", content="x")], max_tokens=5), dict(messages=hi, max_tokens=5, tool_choice=dict(type="any")),
                dict(messages=[dict(role="user", content="word " * 3000)], max_tokens=5)):
        status, answer = post(server, "/v1/messages", **bad)
        assert status == 400 and answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error", bad
    assert ask(server, "POST", "/v1/messages", dict(messages=hi), key="no")[1]["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.BadRequestError): anthropic_client.messages.create(model="x", messages=hi, max_tokens=0)

# ---- OpenAI's responses

def test_responses(server, engine, openai_client):
    c, want = openai_client, engine.generate(chat_ids(engine), n=40)
    ask_for = dict(model="x", instructions=CHAT[0]["content"], input=CHAT[1]["content"], max_output_tokens=40, temperature=0)
    answer = c.responses.create(**ask_for)
    ended = {"length": "incomplete", "stop": "completed"}[want.finish_reason]
    assert answer.output_text == want.text and answer.status == ended and answer.output[0].type == "message"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (want.prompt_n, want.predicted_n)
    with c.responses.stream(**ask_for) as stream:
        seen = list(stream)
        assert seen[-1].response.output[0].content[0].text == want.text
    assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == want.text
    assert [e.sequence_number for e in seen if e.type != "response.output_text.delta"][0] == 0 and seen[-1].type == f"response.{ended}"
    again = c.responses.create(**ask_for | dict(input=[dict(role="user", content=[dict(type="input_text", text=CHAT[1]["content"])])]))
    assert again.output_text == want.text
    listed = c.responses.create(**ask_for | dict(max_output_tokens=8, include=["message.output_text.logprobs"], top_logprobs=2)).output[0].content[0]
    assert "".join(e.token for e in listed.logprobs) == listed.text and all(len(e.top_logprobs) == 2 for e in listed.logprobs)

def test_responses_with_calls_schemas_and_thoughts(server, thinker, openai_client):
    pytest.importorskip("llguidance")
    import openai
    flat = [dict(type="function", name=t["function"]["name"], parameters=t["function"].get("parameters", dict(type="object"))) for t in TOOLS]
    ask_for = dict(model="x", input="Weather?", tools=flat, tool_choice=dict(type="function", name="weather"), max_output_tokens=120)
    form = dict(format=dict(type="json_schema", name="city", schema=CITY))
    for client, first in ((openai_client, []), (openai.OpenAI(base_url=f"http://{thinker}/v1", api_key=KEY, max_retries=0), ["reasoning"])):
        answer = client.responses.create(**ask_for)
        assert [i.type for i in answer.output] == first + ["function_call"] and answer.status == "completed"
        call = answer.output[-1]
        assert call.name == "weather" and set(json.loads(call.arguments)) == {"city"}
        with client.responses.stream(**ask_for) as stream:
            seen = list(stream)
            last = stream.get_final_response().output
        assert [i.type for i in last] == first + ["function_call"] and last[-1].arguments == call.arguments
        assert "".join(e.delta for e in seen if e.type == "response.function_call_arguments.delta") == call.arguments
        if first:
            assert "".join(e.delta for e in seen if e.type == "response.reasoning_text.delta").rstrip() == answer.output[0].content[0].text.rstrip()
            assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens
        assert set(json.loads(client.responses.create(model="x", input="A city.", text=form, max_output_tokens=120).output_text)) == {"city"}
        # what came out goes in again, with the function's result
        talk = [dict(role="user", content="Weather?"), *(i.model_dump(exclude_none=True) for i in answer.output),
                dict(type="function_call_output", call_id=call.call_id, output="rain")]
        assert client.responses.create(model="x", input=talk, max_output_tokens=5).output
    for bad, param in ((dict(previous_response_id="resp_1"), "previous_response_id"), (dict(background=True), "background"), (dict(input=[]), "input"),
                       (dict(tools=[dict(type="web_search")]), "tools"), (dict(input=[dict(type="item_reference", id="x")]), "input"), (dict(max_output_tokens=0), "max_output_tokens")):
        status, answer = post(server, "/v1/responses", **dict(input="x") | bad)
        assert status == 400 and answer["error"]["param"].split(".")[0] == param, answer

# ---- what is wrong

BAD = [("/v1/chat/completions", dict(messages=[]), "messages"), ("/v1/chat/completions", {}, "messages"),
       ("/v1/chat/completions", dict(messages="hi"), "messages"), ("/v1/chat/completions", dict(messages=[3]), "messages"),
       ("/v1/chat/completions", dict(messages=[dict(role="king", content="x")]), "messages"),
       ("/v1/chat/completions", dict(messages=[dict(role="user", content=[dict(type="image_url")])]), "messages"),
       ("/v1/chat/completions", dict(messages=[dict(role="user", content=[dict(type="text", text=5)])]), "messages"),
       ("/v1/chat/completions", dict(messages=CHAT, tools=[{}], tool_choice="required"), "tools"), ("/v1/chat/completions", dict(messages=CHAT, tools=[{}]), "tools"),
       ("/v1/chat/completions", dict(messages=[dict(role="assistant", tool_calls=5)]), "messages"), ("/v1/messages", dict(messages=CHAT[1:], max_tokens=3, tool_choice=dict(type=[])), "tool_choice"),
       ("/v1/chat/completions", dict(messages=CHAT, tool_choice="required"), "tool_choice"),
       ("/v1/chat/completions", dict(messages=CHAT, response_format=dict(type="yaml")), "response_format"),
       ("/v1/chat/completions", dict(messages=CHAT, n=9), "n"), ("/v1/chat/completions", dict(messages=CHAT, top_logprobs=3), "top_logprobs"),
       ("/v1/completions", dict(prompt="x", temperature="hot"), "temperature"), ("/v1/completions", dict(prompt="x", temperature=-1), "temperature"),
       ("/v1/completions", dict(prompt="x", max_tokens=0), "max_tokens"), ("/v1/completions", dict(prompt="x", max_tokens=1.5), "max_tokens"),
       ("/v1/completions", dict(prompt="x", stop=["a"] * 17), "stop"), ("/v1/completions", dict(prompt=[10**6]), "prompt"),
       ("/v1/completions", dict(prompt=[-1]), "prompt"), ("/v1/completions", dict(prompt=""), "prompt"),
       ("/v1/completions", dict(prompt=["a"] * 9), "prompt"), ("/v1/completions", dict(prompt=["a"] * 3, n=3), "prompt"), ("/v1/completions", dict(prompt="x", logit_bias={"x": 1}), "logit_bias"),
       ("/v1/completions", dict(prompt="x", suffix="y"), "suffix"), ("/v1/completions", dict(prompt="x", mirostat=2), "mirostat"),
       ("/v1/completions", dict(prompt="x", seed=2**64), "seed"), ("/tokenize", dict(content=5), "content"), ("/detokenize", dict(tokens=[10**9]), "tokens")]

@pytest.mark.parametrize("path, body, param", BAD)
def test_bad_bodies(server, path, body, param):
    status, answer = post(server, path, **body)
    if path == "/v1/messages": assert status == 400 and answer["type"] == "error" and param in answer["error"]["message"]; return
    assert status == 400 and {"message", "type", "param", "code"} <= set(answer["error"])
    assert (answer["error"]["param"] or "").split(".")[0] == param and "\n" not in answer["error"]["message"]

def test_bodies_that_are_no_json(server):
    deep = b"[" * 100_000
    for raw in (b"", b"{", b"nonsense", b"[]", b"null", b'"x"', deep, b'{"prompt": "\xff"}'):
        status, answer = ask(server, "POST", "/v1/completions", raw=raw)
        assert status == 400 and set(answer["error"]) >= {"message", "type", "param", "code"}, raw[:20]
    status, answer = ask(server, "POST", "/v1/completions", raw=b'{"prompt": "x"}', headers=[("Content-Type", "text/plain")])
    assert status == 400 and "application/json" in answer["error"]["message"]
    status, answer = ask(server, "POST", "/v1/completions", raw=b'{"prompt": "\\ud800", "max_tokens": 2}')
    assert status == 200

def test_a_prompt_that_is_too_long(server, openai_client):
    status, answer = post(server, "/v1/completions", prompt=[5] * 2048)
    e = answer["error"]
    assert status == 400 and e["type"] == "exceed_context_size_error" and (e["n_prompt_tokens"], e["n_ctx"]) == (2048, 2048)
    assert "context_length_exceeded" in e["message"] and e["code"] == "context_length_exceeded"
    import openai
    with pytest.raises(openai.BadRequestError): openai_client.completions.create(model="x", prompt=[5] * 5000)
    answer = post(server, "/v1/completions", prompt=[5] * 2042, max_tokens=100)[1]     # up to the end, and not beyond
    assert answer["usage"]["total_tokens"] <= 2048

def test_sizes_and_paths(server):
    assert ask(server, "POST", "/v1/completions", raw=b" " * (5 << 20))[0] == 413
    for method, path, want in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("GET", "/v1/models/other", 404),
                               ("GET", "/../etc/passwd", 404), ("OPTIONS", "/v1/completions", 405)):
        status, answer = ask(server, method, path)
        assert status == want and "message" in answer["error"], path

def test_the_document_says_what_is_sent(server):
    document = ask(server, "GET", "/openapi.json")[1]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert {"200", "default"} == set(operation["responses"]), path
            assert ("security" in operation) == (path != "/health"), path
    names = [o["operationId"] for methods in document["paths"].values() for o in methods.values()]
    assert len(set(names)) == len(names) and "v1_chat_completions" in names and "HTTPValidationError" not in json.dumps(document)
    kinds = document["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]
    assert set(kinds) == {"application/json", "text/event-stream"}
    c = http.client.HTTPConnection(server, timeout=60)
    c.request("PUT", "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    r = c.getresponse()
    assert r.status == 405 and r.headers["Allow"] == "GET"

def test_the_key(server):
    for path in ("/v1/models", "/props", "/metrics", "/openapi.json", "/", "/nothing", "/v1/chat/completions", "/health/../props"):
        for key in (None, "wrong", KEY[:-1], KEY + "x"):
            status, answer = ask(server, "GET", path, key=key)
            assert status == 401 and "message" in answer["error"], path
    assert ask(server, "GET", "/props", key=None, headers=[("x-api-key", KEY)])[0] == 200

# ---- comings and goings

def leave(address, after, **body):
    "Send a request, and hang up when `after` says so, or after the first bytes of the answer."
    host, port = address.rsplit(":", 1)
    s = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
              f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    if after: until(after)
    else: s.recv(100)
    s.close()

def test_who_leaves_frees_the_place(server, engine):
    busy = lambda: counters(server)["alphabook_requests_processing"]
    left = lambda: counters(server)['alphabook_requests_total{end="left"}']
    long = dict(prompt=PROMPT, max_tokens=2000, logit_bias={"0": -100, "2": -100})       # would go on for long
    for stream, prompt in ((True, PROMPT), (False, PROMPT), (True, list(range(100, 2000)))):      # in the answer, in the prompt
        before = left()
        leave(server, busy, **long | dict(prompt=prompt, stream=stream))
        assert until(lambda: busy() == 0) < 1 and left() == before + 1
    before = left()
    leave(server, None, **long | dict(stream=True))
    assert until(lambda: busy() == 0) < 1 and left() == before + 1
    status, answer = post(server, "/v1/completions", prompt=PROMPT, max_tokens=20)       # nothing was left behind
    assert answer["choices"][0]["text"] == engine.generate(PROMPT, n=20).text

def test_the_queue_has_an_end_and_who_leaves_it_disturbs_nobody(server, engine):
    now = lambda: counters(server)
    long = dict(prompt=PROMPT, max_tokens=2000, logit_bias={"0": -100, "2": -100}, stream=True)
    hold = [threading.Thread(target=leave, args=(server, lambda: release.is_set()), kwargs=long) for _ in range(8)]
    release = threading.Event()
    for t in hold[:2]: t.start()
    until(lambda: now()["alphabook_requests_processing"] == 2)
    for t in hold[2:]: t.start()
    until(lambda: now()["alphabook_requests_deferred"] == 6)                              # it is full
    status, answer = post(server, "/v1/completions", prompt="x")
    assert status == 429 and answer["error"]["code"] == "queue_full"
    release.set()
    for t in hold: t.join()
    until(lambda: now()["alphabook_requests_processing"] + now()["alphabook_requests_deferred"] == 0)
    release = threading.Event()
    want, out = engine.generate(PROMPT, n=200).text, []
    active = threading.Thread(target=lambda: out.append(post(server, "/v1/completions", prompt=PROMPT, max_tokens=200)))
    active.start()
    for _ in range(4): leave(server, lambda: True, **long)                                # ik_llama#1929
    active.join()
    assert out[0][1]["choices"][0]["text"] == want

def test_a_server_without_a_key_answers_to_localhost_only_and_ends_gently():
    p, address = start("--ctx", 256)
    try:
        assert ask(address, "GET", "/v1/models", key=None)[0] == 200
        status, answer = ask(address, "GET", "/v1/models", key=None, headers=[("Host", "evil.example")])
        assert status == 403 and answer["error"]["code"] == "bad_host"
        assert "access-control-allow-origin" not in json.dumps(answer)
        out = []
        body = dict(prompt=PROMPT, max_tokens=150, logit_bias={"0": -100, "2": -100})
        running = threading.Thread(target=lambda: out.append(ask(address, "POST", "/v1/completions", body, key=None)))
        running.start()
        until(lambda: "alphabook_requests_processing 1" in ask(address, "GET", "/metrics", key=None)[1])
        p.send_signal(signal.SIGINT)
        running.join()
        assert out[0][0] == 200 and out[0][1]["usage"]["completion_tokens"] == 150       # it was allowed to finish
        assert p.wait(20) == 0
    finally: p.kill()

SLOW = """
import pathlib, sys, time
from alphabook import Engine
from alphabook.server import serve
gate, model, port, key = sys.argv[1:]
def load():
    while not pathlib.Path(gate).exists(): time.sleep(0.02)
    return Engine.load(model, n_ctx=256)
serve(load, port=int(port), key=key, ready=lambda where, service: print("READY", where, flush=True))
"""

@pytest.fixture
def slow(tmp_path):
    "A server whose model takes as long to load as the test likes: (process, address, file that lets it go on)."
    with socket.create_server(("127.0.0.1", 0)) as s: port = s.getsockname()[1]
    gate, address = tmp_path / "gate", f"127.0.0.1:{port}"
    p = subprocess.Popen([sys.executable, "-c", SLOW, gate, MODEL, str(port), KEY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    def listens():
        try: return ask(address, "GET", "/health", key=None)
        except OSError: return None
    until(listens, 60)
    yield p, address, gate
    p.kill(); p.communicate()

def test_health_while_loading_and_after(slow):
    p, address, gate = slow
    for _ in range(3):
        status, answer = ask(address, "GET", "/health", key=None)                          # no key
        assert status == 503 and set(answer["error"]) == {"message", "type", "param", "code"} and "loading" in answer["error"]["message"]
        time.sleep(0.1)
    for method, path, body in (("GET", "/v1/models", None), ("GET", "/props", None), ("POST", "/v1/completions", dict(prompt="x")),
                               ("POST", "/v1/chat/completions", dict(messages=CHAT)), ("POST", "/tokenize", dict(content="x")),
                               ("POST", "/v1/messages", dict(messages=CHAT[1:], max_tokens=3))):
        assert ask(address, method, path, body)[0] == 503, path
        assert ask(address, method, path, body, key=None)[0] == 401, path                 # what is loading has a key, too
    assert counters(address)["alphabook_ready"] == 0
    gate.touch()
    until(lambda: ask(address, "GET", "/health", key=None) == (200, dict(status="ok")), 60)
    assert post(address, "/v1/completions", prompt="x", max_tokens=3)[0] == 200 and counters(address)["alphabook_ready"] == 1

def test_a_server_that_loads_can_be_stopped(slow):
    p, address, gate = slow
    p.send_signal(signal.SIGTERM); begun = time.perf_counter()
    assert p.wait(20) == 0 and time.perf_counter() - begun < 5
    assert p.stderr.read() == ""

# ---- what it tells, and what it doesn't

def test_the_log_has_numbers_and_no_text(server, log, engine):
    secret = "Xylophone Quagmire"
    def lines(since): return [json.loads(x) for x in log.read_text().splitlines()[since:]]
    n = len(lines(0))
    done = lambda k: until(lambda: len(lines(n)) >= k)
    answer = post(server, "/v1/completions", prompt=PROMPT + secret, max_tokens=30, n=2, temperature=0)[1]; done(1)
    events(server, "/v1/chat/completions", messages=[dict(role="user", content=secret)], max_tokens=4); done(2)
    post(server, "/v1/completions", prompt=secret, temperature="hot"); done(3)
    ask(server, "GET", "/v1/" + secret.split()[0], key="stolen-key"); done(4)
    leave(server, None, prompt=PROMPT, max_tokens=2000, logit_bias={"0": -100, "2": -100}, stream=True); done(5)
    ask(server, "GET", "/health"); ask(server, "GET", "/metrics")
    whole, stream, bad, lost, gone = lines(n)
    assert [r["status"] for r in lines(n)] == [200, 200, 400, 401, 200] and len({r["id"] for r in lines(n)}) == 5
    assert (whole["path"], whole["method"], whole["stream"], stream["stream"]) == ("/v1/completions", "POST", False, True)
    a, b = whole["jobs"]
    g = engine.generate(PROMPT + secret, n=30)
    assert a["predicted_n"] == g.predicted_n and a["cache_n"] + a["prompt_n"] == g.prompt_n and a["end"] == "finished"
    assert a["drafted"] >= a["accepted"] == sum(sum(m["accepted_per_position"]) for m in a["by_drafter"].values())
    assert 0 <= a["queue_ms"] <= a["first_ms"] <= a["total_ms"] <= whole["ms"] and a["rounds"] > 0 and not a["sampled"]
    assert b["cache_hit_rate"] is not None and a["draft_hit_rate"] == round(a["accepted"]/a["drafted"], 4)
    assert (bad["error"], bad["jobs"], lost["error"], lost["path"]) == ("bad_value", [], "invalid_api_key", None)
    assert gone["jobs"][0]["end"] == "left"
    text = log.read_text()
    assert not any(w in text for w in (*secret.split(), KEY, "stolen", "fibonacci", str(ROOT)))
    assert answer["choices"][0]["text"] not in text and json.loads(text.splitlines()[0])["event"] == "ready"

def test_a_template_without_an_end_costs_its_own_requests_and_streams_have_an_end(tmp_path):
    "The file is not trusted; and a server that is asked to stop ends what takes too long, and says so."
    loops = "{% if messages[0].content == 'loop' %}" + "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3 + "{% endif %}x{{ messages[0].content }}" \
            "{% if messages[0].content == 'no' %}{{ raise_exception('Not in this place') }}{% endif %}"
    p, address = start("--ctx", 100_000, "--grace", 1, model=with_template(tmp_path / "loops.gguf", loops))
    try:
        talk = lambda text: ask(address, "POST", "/v1/chat/completions", dict(messages=[dict(role="user", content=text)], max_tokens=3), key=None)
        late = []
        loop = threading.Thread(target=lambda: late.append((talk("loop"), time.perf_counter()))); begun = time.perf_counter(); loop.start()
        assert ask(address, "POST", "/v1/completions", dict(prompt="x", max_tokens=3), key=None)[0] == 200 and not late    # others go on
        loop.join()
        (status, answer), ended = late[0]
        assert status == 400 and "chat template: it takes longer than 5 s" == answer["error"]["message"] and ended - begun < 9
        assert talk("fine")[0] == 200
        status, answer = talk("no")                                                       # llama.cpp#20733
        assert status == 400 and "Not in this place" in answer["error"]["message"]
        endless = dict(prompt="x", max_tokens=90_000, logit_bias={"0": -100, "2": -100}, stream=True)
        out = []
        def listen():
            c = http.client.HTTPConnection(address, timeout=60)
            c.request("POST", "/v1/completions", json.dumps(endless), {"Content-Type": "application/json"})
            out.append(c.getresponse().read())
        stream = threading.Thread(target=listen); stream.start()
        until(lambda: "alphabook_requests_processing 1" in ask(address, "GET", "/metrics", key=None)[1])
        p.send_signal(signal.SIGTERM); begun = time.perf_counter()
        stream.join()
        last = json.loads(out[0].split(b"\n\n")[-2][6:])
        assert last["error"]["code"] == "unavailable" and "shutting down" in last["error"]["message"]
        assert p.wait(20) == 0 and 0.9 < time.perf_counter() - begun < 6
    finally: p.kill()

def test_a_body_that_does_not_arrive(monkeypatch):
    import asyncio
    from alphabook import server as doors
    monkeypatch.setattr(doors, "PATIENCE", 0.05)
    sent = []
    async def one():
        async def receive(): await asyncio.sleep(30)
        async def send(message): sent.append(message)
        scope = dict(type="http", method="POST", path="/v1/completions", headers=[(b"host", b"localhost")], app=None)
        await doors.Guard(None)(scope, receive, send)
    asyncio.run(one())
    assert sent[0]["status"] == 408 and json.loads(sent[1]["body"])["error"]["code"] == "request_timeout"
    assert any(name == b"x-request-id" for name, _ in sent[0]["headers"])

def test_a_port_that_is_taken_and_a_package_that_is_missing(server):
    run = lambda *argv, code="": subprocess.run([sys.executable, "-c", code + "import sys, alphabook.cli as c; sys.exit(c.main(sys.argv[1:]))",
                                                 *argv], capture_output=True, text=True, timeout=300)
    p = run("serve", "--port", server.rsplit(":", 1)[1])
    assert p.returncode == 2 and "--port" in p.stderr and p.stderr.count("\n") == 1
    p = run("serve", "--port", "0", code="import sys; sys.modules['uvicorn'] = None\n")
    assert p.returncode == 2 and 'pip install "alphabook[server]"' in p.stderr and p.stderr.count("\n") == 1
