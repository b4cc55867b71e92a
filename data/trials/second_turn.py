"""Time to the first token of a chat's second turn on a long history, with the session that the first turn left and without.

    python data/trials/second_turn.py [-m FILE] [--tokens 4000] [--passes 5] [-o data/results/cpu]

Arms take turns within a pass. Both give the same tokens, or the run fails.
"""
import argparse, datetime, json, statistics, subprocess, time
from pathlib import Path

from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.cpu_streams import set_threads
from alphabook.engine import Engine, Generation, run

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("-m", "--model"); p.add_argument("--tokens", type=int, default=4000); p.add_argument("--passes", type=int, default=5)
p.add_argument("--threads", type=int); p.add_argument("-o", "--out", default="data/results/cpu")
args = p.parse_args()
threads = set_threads(args.threads)
engine = Engine.load(args.model, device="cpu", n_ctx=args.tokens + 512, threads=args.threads)
tk, template = engine.tokenizer, engine.chat_template()

# A history of so many tokens: a system prompt, then the text of this repository as one question
text = "".join(f.read_text(encoding="utf-8") for f in sorted(Path(__file__).parent.glob("*.py")))*4
def ids_of(messages): return tk.encode(template.render(messages), add_special=False)
size = 2*args.tokens
while len(ids_of([dict(role="user", content=text[:size])])) > args.tokens: size -= 50
talk = [dict(role="system", content="Be brief."), dict(role="user", content=text[:size])]
history = ids_of(talk)

def first_token(ids, session):
    "Milliseconds to the first token, prompt tokens that were read, 16 tokens."
    g, read, start, ms, out = Generation(), [0], time.perf_counter(), None, []
    for token in run(engine, g, ids, 16, session=session, progress=lambda done, total: read.append(total)):
        ms = ms or (time.perf_counter() - start)*1e3
        out.append(token.id)
    return ms, read[-1], out

times, reads = dict(kept=[], changed=[], fresh=[]), {}
for number in range(args.passes + 1):                          # the first pass warms up
    session = engine.session()
    g = engine.generate(history, n=24, session=session)
    more = talk + [dict(role="assistant", content=g.text), dict(role="user", content="And what is the second function good for?")]
    other = talk[:1] + [dict(role="user", content=text[:size - 200] + " Why?")]
    for arm, ids, with_session in (("kept", ids_of(more), True), ("fresh", ids_of(more), False), ("changed", ids_of(other), True)):
        ms, read, out = first_token(ids, session if with_session else None)
        if arm == "kept": want = out
        if arm == "fresh": assert out == want, "the session changed a text"
        if arm == "changed": assert out == engine.generate(ids, n=16).token_ids, "the session changed a text"
        if number: times[arm].append(ms)
        reads[arm] = (read, len(ids))
names = dict(kept="second turn, session kept", changed="question changed at its end", fresh="second turn, read anew")
about = dict(device="cpu", model=engine.mf.path.stem, context=len(history), width=1, mode="exact", drafter="auto", spread=0.0)
def row(arm, value, unit, **more): return dict(about, arm=arm, value=value, unit=unit, n=args.passes) | more
rows = [row(f"{names[a]}: first token", statistics.median(v), "ms", spread=statistics.pstdev(v)) for a, v in times.items()]
rows += [row(f"{names[a]}: tokens read", reads[a][0], "tokens") for a in times]
saved = 1 - statistics.median(times["kept"])/statistics.median(times["fresh"])
rows.append(row("time to first token saved", 100*saved, "%"))
types = {t.type.name for t in engine.mf.tensors.values() if len(t.shape) > 1}
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
result = dict(topic="second-turn", device="cpu", quantization="/".join(sorted(types)), date=str(datetime.date.today()), commit=commit,
              command=f"python data/trials/second_turn.py --tokens {args.tokens} --passes {args.passes} --threads {threads}",
              contract_version=CONTRACT_VERSION, rows=rows)
out = Path(args.out)/f"second-turn-{result['date']}.json"
out.write_text(json.dumps(result, indent=1) + "\n")
for r in rows: print(f"{r['arm']:45} {r['value']:10.1f} {r['unit']}")
