"""Conversations and small templates that use what templates in the wild use; what transformers prints for them is recorded."""
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city, <b>now</b>.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "e.g. Zürich"}, "days": {"type": "integer"}}, "required": ["city"]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "abcdefghi", "function": {
    "name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "{\"sky\": \"<blue>\"}"}
USER, SYSTEM = {"role": "user", "content": "How is the weather in Zürich?  "}, {"role": "system", "content": "You are brief & <exact>."}
ANSWER, THANKS = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nBlue."}, {"role": "user", "content": "Thanks 😊"}
TALKS = {
    "one": dict(messages=[USER]), "system": dict(messages=[SYSTEM, USER]), "turns": dict(messages=[SYSTEM, USER, ANSWER, THANKS]),
    "closed": dict(messages=[USER, ANSWER], add_generation_prompt=False), "tools": dict(messages=[SYSTEM, USER], tools=[WEATHER]),
    "called": dict(messages=[USER, CALL, RESULT], tools=[WEATHER]), "answered": dict(messages=[SYSTEM, USER, CALL, RESULT, ANSWER, THANKS], tools=[WEATHER]),
    "no thinking": dict(messages=[USER], enable_thinking=False), "late system": dict(messages=[USER, SYSTEM]), "two users": dict(messages=[USER, THANKS]),
    "reasoning": dict(messages=[USER, {"role": "assistant", "content": "Blue.", "reasoning_content": "Hm."}, THANKS]),
    "documents": dict(messages=[USER], documents=[{"title": "Sky", "text": "It is blue."}]), "empty": dict(messages=[])}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "reverse": "{% for m in messages[::-1] %}{{ m.role }}:{{ m['content'] | trim }}|{% endfor %}",
    "break": "{%- for m in messages %}\n  {%- if m.role == 'tool' %}{% break %}{% endif %}\n  {%- if not m.content %}{% continue %}{% endif %}\n{{ m.content }}\n{% endfor %}",
    "namespace": "{% set ns = namespace(last=-1, seen=[]) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}",
    "startswith": "{% for m in messages if m.content.startswith('How') or m.content.endswith('😊') %}{{ m.content.split(' ')[-1] }},{{ loop.length }};{% endfor %}",
    "tojson": "{% if tools %}{{ tools | tojson }}\n{{ tools[0] | tojson(indent=2) }}{{ tools | tojson(separators=(',', ':')) }}{% endif %}{{ messages | tojson }}",
    "raise": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first: ' + m.content) }}{% endif %}{% endfor %}ok",
    "alternate": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{{ bos_token + m.content + eos_token }}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "blanks": "  {% if add_generation_prompt %}\n    yes\n  {% endif %}\n\n\t{%- if true -%}  x  {%- endif %}\n{# note #}\nend\n",
    "macro": "{%- macro show(m, mark='#') -%}{{ mark }}{{ m.role | upper }}{{ m.content | length }}{%- endmacro -%}{% for m in messages %}{{ show(m, mark='*') }}{% endfor %}",
    "defined": "{% if bos_token is defined %}b{% endif %}{% if pad_token is defined %}p{% endif %}{% if tools is none %}n{% endif %}{% if enable_thinking is defined and not enable_thinking %}t{% endif %}",
    "documents": "{% for d in documents or [] %}{{ loop.index }} {{ d.title }}: {{ d['text'] }}{% endfor %}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content or m.reasoning or '-' }}{% endfor %}",
    "arguments": "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){% endfor %}{% endfor %}",
    "sandbox": "{{ ''.__class__.__mro__ }}", "change": "{{ messages.append(1) }}", "dunder": "{% set ns = namespace(__class__=1) %}{{ ns.x }}",
    "dict": "{% set d = dict(a=1, b='ü') %}{{ d | tojson }}{{ d.a }}", "index": "{{ messages[9].content }}", "type": "{{ 1 + 'a' }}",
}
