"""Templates print what transformers prints; answers come apart into reasoning, content and tool calls."""
import gzip, json, sys
from functools import lru_cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "golden")]

import record_chat as golden, toyvocab
from alphabook.chat import CHATML, ChatTemplate, parse_tool_calls, split_reasoning
from alphabook.fetch import cache_dir
from chatcases import SPECIAL, TALKS, TEMPLATES, USER

RECORDED = json.loads(gzip.decompress(golden.OUT.read_bytes()))

@lru_cache(4)
def template(source): return ChatTemplate(source, SPECIAL)

def render(source, talk):
    try: return ["text", template(source).render(**talk)]
    except ValueError as e: return ["error", str(e).removeprefix("chat template: ")]

@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("talk", TALKS)
def test_small_templates_equal_transformers(name, talk):
    "llama.cpp#13178, #11443: reverse slices, startswith, break, namespace, tojson."
    kind, text = RECORDED["small"][name][talk]
    ours = render(TEMPLATES[name], TALKS[talk])
    assert ours[0] == kind
    if name != "dunder": assert ours[1] == text

@pytest.mark.parametrize("name", RECORDED["others"])
def test_published_templates_equal_transformers(name):
    path = cache_dir() / "vocab" / name
    if not path.exists(): pytest.skip(f"{path} is not there; run: python tests/golden/record_tokenizer.py --vocab-only")
    source = path.read_text()
    assert golden.digest(source) == RECORDED["others"][name]["source"]
    for talk, (kind, digest) in RECORDED["others"][name]["rows"].items():
        ours = render(source, TALKS[talk])
        assert ours[0] == kind and (golden.digest(ours[1]) == digest), (talk, ours[1])

def test_what_the_template_objects_to_is_the_error():
    "llama.cpp#20733: the message of raise_exception reaches the caller."
    with pytest.raises(ValueError, match="^chat template: System message must be first: You are brief"):
        ChatTemplate(TEMPLATES["raise"]).render(**TALKS["late system"])

def test_messages_are_not_changed():
    messages = [dict(USER, reasoning="x")]
    ChatTemplate("{{ messages[0].reasoning_content }}").render(messages)
    assert messages == [dict(USER, reasoning="x")]

@pytest.mark.parametrize("messages", ["hi", [1], None, [{"role": "user", "content": object()}]])
def test_bad_messages(messages):
    with pytest.raises(ValueError) as e: ChatTemplate(CHATML).render(messages)
    assert "\n" not in str(e.value)

def test_a_model_without_a_template():
    meta = {k: v[1] if isinstance(v, tuple) else v for k, v in toyvocab.toy("qwen2").items()}
    assert ChatTemplate.from_meta(meta).render([USER]).endswith("<|im_end|>\n<|im_start|>assistant\n")
    meta["tokenizer.chat_template"] = "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"
    assert ChatTemplate.from_meta(meta).render([]) == "<|im_start|><|im_end|>False"
    del meta["tokenizer.chat_template"]
    meta["tokenizer.ggml.tokens"] = [t.replace("<|im_start|>", "<|x|>") for t in meta["tokenizer.ggml.tokens"]]
    with pytest.raises(ValueError, match="no chat template"): ChatTemplate.from_meta(meta)
    meta["tokenizer.chat_template"] = "{% for %}"
    with pytest.raises(ValueError, match="tokenizer.chat_template: line 1"): ChatTemplate.from_meta(meta)

@pytest.mark.parametrize("text, opened, expected", [
    ("<think>\na\n</think>\n\nb", False, ("a", "b")), ("a</think>b", False, ("a", "b")), ("a", True, ("a", "")), ("a", False, ("", "a")),
    ("<think>a", False, ("a", "")), ("", False, ("", "")), ("", True, ("", "")), ("  <think></think>x", False, ("", "x")),
    ("see <think>x</think>", False, ("", "see <think>x</think>")), ("a</think>b</think>", True, ("a", "b</think>"))])
def test_reasoning(text, opened, expected): assert split_reasoning(text, opened) == expected

CALL = {"name": "f", "arguments": {"a": 1, "b": "x <y>"}}
@pytest.mark.parametrize("text, content, calls", [
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": "x <y>"}}\n</tool_call>', "", [CALL]),
    ('<tool_call>{"arguments": {"b": "x <y>", "a": 1}, "name": "f"}</tool_call>', "", [CALL]),
    ('Sure.\n<tool_call>{"name": "f", "arguments": "{\\"a\\": 1, \\"b\\": \\"x <y>\\"}"}', "Sure.", [CALL]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1, "b": "x <y>"}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>', "", [CALL, {"name": "g", "arguments": {}}]),
    ("<tool_call>\n<function=f>\n<parameter=b>\nx <y>\n</parameter>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", "", [CALL]),
    ("Hm <function=f><parameter=a>1</parameter><parameter=b>x <y></parameter></function>", "Hm", [CALL]),
    ("<tool_call>\n<function=g>\n</function>\n</tool_call>", "", [{"name": "g", "arguments": {}}]),
    ('<function=g>{"a": 1}</function>', "", [{"name": "g", "arguments": {"a": 1}}]),
    ('<function=g>{"a": </function>', '<function=g>{"a": </function>', []),
    ('{"name": "f", "parameters": {"a": 1, "b": "x <y>"}}', "", [CALL]), ('<|python_tag|>{"parameters": {}, "name": "g"}', "", [{"name": "g", "arguments": {}}]),
    ('{"type": "function", "function": {"name": "f", "arguments": {"b": "x <y>", "a": 1}}}', "", [CALL]),
    ('[{"name": "f", "arguments": {"a": 1, "b": "x <y>"}}, {"name": "g"}]', "", [CALL, {"name": "g", "arguments": {}}]),
    ("No call.", "No call.", []), ('{"a": 1}', '{"a": 1}', []), ("<tool_call>{</tool_call>", "<tool_call>{</tool_call>", []), ("", "", []), ("[1, 2]", "[1, 2]", [])])
def test_tool_calls(text, content, calls): assert parse_tool_calls(text) == (content, calls)
