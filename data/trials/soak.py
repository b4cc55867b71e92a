"""Many requests of mixed kinds on one server, some at a time: no leak, the same texts as alone, errors of the right shape.

    python data/trials/soak.py [-m FILE] [--requests 500] [--at-once 8] [--seed 1] [-o data/results/cpu]

Kinds: completions and chats, whole and streamed, sampled and greedy; messages, responses; schemas, calls that must come; clients that
leave at a random point; bodies that are wrong, prompts that are too long. Each text is first asked for alone. Exit code 1 if a text
differs, an error has another shape, memory grows by more than 2 % after the warm-up, or drafts get worse by more than 5 points.
"""
import argparse, datetime, http.client, json, random, signal, socket, statistics, subprocess, sys, threading, time
from collections import Counter
from pathlib import Path

from alphabook.arithmetic import CONTRACT_VERSION

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("-m", "--model"); p.add_argument("--requests", type=int, default=500); p.add_argument("--at-once", type=int, default=8)
p.add_argument("--seed", type=int, default=1); p.add_argument("-o", "--out", default="data/results/cpu")
args = p.parse_args()
chance = random.Random(args.seed)
CITY = dict(type="object", required=["city"], additionalProperties=False, properties=dict(city=dict(type="string", maxLength=9)))
TOOLS = [dict(type="function", function=dict(name="weather", parameters=CITY))]
FORM = dict(type="json_schema", json_schema=dict(name="city", schema=CITY))
STARTS = ["def fibonacci(n):\n", "import os\n", "The list is", "class Stack:\n    def push(self, x):\n", "# A queue\n", "for i in range(10):\n"]

def chat(i): return [dict(role="system", content="Be brief."), dict(role="user", content=f"What does this do?\n{STARTS[i % len(STARTS)]}" + "x = 1\n"*(i % 7))]
def made(i):
    "Request i: (kind, path, body)."
    r, n = random.Random(args.seed*1000 + i % 60), 8 + i % 30                 # sixty different ones
    how = dict(temperature=0.9, top_p=0.95, seed=i % 60) if r.random() < .4 else dict(temperature=0)
    kind = r.choices(["completion", "chat", "messages", "responses", "schema", "call"], (4, 4, 2, 2, 1, 1))[0]
    if kind == "completion": return kind, "/v1/completions", dict(how, prompt=r.choice(STARTS) + "a = 2\n"*r.randrange(20), max_tokens=n)
    if kind == "messages": return kind, "/v1/messages", dict(how, messages=chat(i % 60)[1:], system="Be brief.", max_tokens=n)
    if kind == "responses": return kind, "/v1/responses", dict(how, input=chat(i % 60)[1]["content"], max_output_tokens=n)
    more = dict(chat={}, schema=dict(response_format=FORM), call=dict(tools=TOOLS, tool_choice="required"))[kind]
    return kind, "/v1/chat/completions", dict(how, messages=chat(i % 60), max_tokens=n if kind == "chat" else 80, **more)
BAD = [("/v1/completions", dict(prompt="x", temperature="hot")), ("/v1/chat/completions", dict(messages=[])), ("/v1/completions", "{"),
       ("/v1/messages", dict(messages=[dict(role="king", content="x")], max_tokens=3)), ("/v1/responses", dict(input="x", background=True)),
       ("/v1/completions", dict(prompt="word "*9000)), ("/v1/chat/completions", dict(messages=chat(1), response_format=dict(type="x")))]

flags = ["-m", args.model] if args.model else []
server = subprocess.Popen([sys.executable, "-m", "alphabook", "serve", *flags, "--port", "0", "--ctx", "4096", "--log", "none", "--parallel", "4"],
                          stderr=subprocess.PIPE, text=True)
for line in server.stderr:
    if line.startswith("READY"): break
address = line.split()[1].removeprefix("http://")
complaints = []
threading.Thread(target=lambda: complaints.extend(server.stderr), daemon=True).start()

def ask(path, body, method="POST"):
    c = http.client.HTTPConnection(address, timeout=600)
    c.request(method, path, body if isinstance(body, (str, type(None))) else json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse(); data = r.read(); c.close()
    return r.status, data
def text_of(path, data):
    "What was said: texts, or calls."
    a = json.loads(data)
    if path == "/v1/messages": return a["content"][0]["text"] if a["content"] else ""
    if path == "/v1/responses": return a["output"][0]["content"][0]["text"]
    if path == "/v1/completions": return a["choices"][0]["text"]
    m = a["choices"][0]["message"]
    return m["tool_calls"][0]["function"]["arguments"] if m.get("tool_calls") else m["content"]
def streamed(path, data):
    "The same, put together from a stream's events."
    out = ""
    for line in data.decode("utf-8").splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]": continue
        e = json.loads(line[6:])
        if "choices" in e and e["choices"]:
            d = e["choices"][0]
            out += d.get("text") or (d.get("delta") or {}).get("content") or "".join(t["function"].get("arguments") or "" for t in (d.get("delta") or {}).get("tool_calls") or [])
        elif e.get("type") == "content_block_delta": out += e["delta"].get("text", "")
        elif e.get("type") == "response.output_text.delta": out += e["delta"]
    return out
def leave(path, body, after):
    "Hang up after some bytes, or seconds."
    s = socket.create_connection(tuple([address.split(":")[0], int(address.split(":")[1])]))
    data = json.dumps(dict(body, stream=True)).encode()
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    s.settimeout(after)
    try: s.recv(int(after*4000) + 1)
    except TimeoutError: pass
    s.close()
def rss(): return int(next(x for x in open(f"/proc/{server.pid}/status") if x.startswith("VmRSS")).split()[1])*1024
def counters(): return {k: float(v) for k, v in (x.rsplit(" ", 1) for x in ask("/metrics", None, "GET")[1].decode().splitlines() if x[0] != "#")}
def drafts():
    c = counters()
    return [sum(v for k, v in c.items() if k.startswith(f"alphabook_draft_{what}_total")) for what in ("accepted", "drafted")]

alone = {}
for i in range(60):
    kind, path, body = made(i)
    status, data = ask(path, body)
    assert status == 200, (kind, data)
    alone[i] = text_of(path, data)
print(f"{len(alone)} texts alone; {rss()/2**20:.0f} MiB", file=sys.stderr)

plan, wrong, seen, times, memory, rates = [], [], Counter(), [], [], []
for i in range(args.requests):
    plan.append((chance.choices(["whole", "stream", "leave", "bad"], (5, 5, 2, 1.5))[0], chance.randrange(60), chance.random()))
todo, lock = iter(enumerate(plan)), threading.Lock()
def work():
    while True:
        with lock:
            step = next(todo, None)
            if step is None: return
            if step[0] % 50 == 0: memory.append((step[0], rss())); rates.append(drafts())
        number, (what, i, x) = step
        kind, path, body = made(i)
        start = time.perf_counter()
        if what == "leave": leave(path, dict(body, max_tokens=400), x*0.5)
        elif what == "bad":
            path, body = BAD[int(x*len(BAD))]
            status, data = ask(path, body)
            e = json.loads(data).get("error", {})
            fits = {"type", "message"} <= set(e) if path == "/v1/messages" else {"message", "type", "param", "code"} <= set(e)
            if status != 400 or not fits: wrong.append(f"{number}: {path} gave {status} {data[:200]}")
        else:
            status, data = ask(path, dict(body, stream=what == "stream"))
            got = (streamed if what == "stream" else text_of)(path, data) if status == 200 else None
            if got != alone[i]: wrong.append(f"{number}: {what} {kind} {i}: {status}, {got!r} is not {alone[i]!r}")
            times.append(time.perf_counter() - start)
        with lock: seen[what] += 1
begun = time.perf_counter()
threads = [threading.Thread(target=work) for _ in range(args.at_once)]
for t in threads: t.start()
for t in threads: t.join()
seconds = time.perf_counter() - begun
time.sleep(1)
memory.append((args.requests, rss())); rates.append(drafts())
end = counters()
busy = end["alphabook_requests_processing"] + end["alphabook_requests_deferred"]
server.send_signal(signal.SIGTERM)
if server.wait(60): wrong.append(f"exit code {server.returncode}")
wrong += [f"stderr: {x.strip()}" for x in complaints if "Traceback" in x or "watchdog" in x]
if busy: wrong.append(f"{busy:.0f} requests were left over")
warm = next(m for n, m in memory if n >= args.requests//3)
growth = 100*(memory[-1][1] - warm)/warm
if growth > 2: wrong.append(f"memory grew by {growth:.1f} % after the first third")
third = len(rates)//3
def level(a, b): return 100*(b[0] - a[0])/max(1, b[1] - a[1])
levels = level(rates[0], rates[third]), level(rates[-1 - third], rates[-1])
if levels[1] < levels[0] - 5: wrong.append(f"drafts got worse: {levels}")
about = dict(device="cpu", model="alphabook-mini" if not args.model else Path(args.model).stem, context=4096, width=1, mode="exact", drafter="auto", n=1, spread=0.0)
def row(arm, value, unit, **more): return dict(about, arm=arm, value=round(value, 3), unit=unit) | more
rows = [row("requests", args.requests, "requests"), row("texts that differ from those alone, errors of a wrong shape, tracebacks", len(wrong), "failures")]
rows += [row(f"requests: {k}", v, "requests") for k, v in sorted(seen.items())]
rows += [row("memory after the first third", warm/2**20, "MiB"), row("memory at the end", memory[-1][1]/2**20, "MiB"), row("growth", growth, "%"),
         row("drafts accepted, first third", levels[0], "%"), row("drafts accepted, last third", levels[1], "%"),
         row("time of a request", statistics.median(times), "s", n=len(times), spread=round(statistics.pstdev(times), 3)), row("in all", seconds, "s")]
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
result = dict(topic="soak", device="cpu", quantization="of the file", date=str(datetime.date.today()), commit=commit, contract_version=CONTRACT_VERSION,
              command=f"python data/trials/soak.py --requests {args.requests} --at-once {args.at_once} --seed {args.seed}", rows=rows)
for r in rows: print(f"{r['arm']:75} {r['value']:10.1f} {r['unit']}")
print(*wrong[:20], sep="\n")
(Path(args.out)/f"soak-{result['date']}.json").write_text(json.dumps(result, indent=1) + "\n")
sys.exit(bool(wrong))
