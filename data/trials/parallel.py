"""Four requests on one scheduler: one after another, at once with a round for each, at once with rounds that they share, at once as the rule of
chapter 24a decides.

    python data/trials/parallel.py [-m FILE …] [-n 64] [--passes 3] [--at-once 4] [-o data/results/cpu]

Tokens a second of all answers together, without and with drafts; arms in turns, the first one again at the end as the control. The
first pass is not counted (rounds are recorded in it). Every text of every arm is compared with what the engine says alone; exit code 1
if one differs.
"""
import argparse, datetime, statistics, subprocess, sys, time
from pathlib import Path

from alphabook import Engine
from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.protocol import load, machine, model_facts
from alphabook.turns import Job, Scheduler

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("-m", "--model", nargs="*", default=[None]); p.add_argument("-n", type=int, default=64); p.add_argument("--passes", type=int, default=3)
p.add_argument("--at-once", type=int, default=4); p.add_argument("-o", "--out", default="data/results/cpu")
args = p.parse_args()
STARTS = ["def fibonacci(n):\n", "class Stack:\n    def push(self, x):\n", "# Reads a file and counts its words\n", "The list is sorted, so that",
          "import json\n\ndef load(path):\n", "for i in range(10):\n", "def quicksort(xs):\n", "A queue is"]
STARTS = [STARTS[i % 8] for i in range(args.at_once)]

def one_by_one(s, jobs):
    for job in jobs: s.submit(job); list(job)
def at_once(s, jobs):
    s.submit(*jobs)
    for job in jobs: list(job)
class Fixed:
    "Stands for the rule (chapter 24a), and always says the same."
    def __init__(self, shared): self.pays, self.alone, self.together = (lambda n: shared), (lambda *a: None), (lambda *a: None)
def under(rule):
    def arm(s, jobs):
        own, s.sharing = s.sharing, rule
        try: at_once(s, jobs)
        finally: s.sharing = own
    return arm
ARMS = {"one after another": one_by_one, "at once, in turns": under(Fixed(False)), "at once, shared rounds": under(Fixed(True)), "at once, as the clock says": at_once,
        "one after another, again": one_by_one}

rows, wrong, models, began = [], [], [], load()
for path in args.model:
    for drafter in ("none", "auto"):
        engine = Engine.load(path, n_ctx=1024, drafter=drafter)
        facts = model_facts(engine)
        if drafter == "none": models.append(facts)
        ids = [engine.tokenizer.encode(t) for t in STARTS]
        ban = [*engine.tokenizer.eog_ids]
        def on(row, said):                                                    # no text ends early
            row = row.copy(); row[ban] = -1e30
            return row
        alone = [engine.generate(i, args.n, steer=on).token_ids for i in ids]
        s, found, rounds = Scheduler(lambda: engine, slots=args.at_once, n_ctx=1024).start(), {a: [] for a in ARMS}, {}
        with s.lock: s.lock.wait_for(lambda: s.state != "loading")
        for number in range(args.passes + 1):
            for arm in list(ARMS)[::-1 if number % 2 else 1]:
                jobs = [Job(i, args.n, steer=on) for i in ids]
                begun = time.perf_counter()
                ARMS[arm](s, jobs)
                seconds = time.perf_counter() - begun
                wrong += [f"{facts['model']}, {drafter}, {arm}: text {i}" for i, (j, want) in enumerate(zip(jobs, alone)) if j.g.token_ids != want]
                if number: found[arm].append(sum(j.g.predicted_n for j in jobs)/seconds)
                rounds[arm] = sum(j.g.rounds for j in jobs)/sum(j.g.predicted_n - 1 for j in jobs)
        s.close()
        for arm, speeds in found.items():
            about = dict(model=facts["model"], quantization=facts["quantization"], arm=arm, drafter=drafter, width=args.at_once, n=len(speeds))
            ratios = [a/b for a, b in zip(speeds, found["one after another"])]
            for values, unit in ((speeds, "tok/s"), (ratios, "tok/s ÷ one after another's")):
                rows.append(about | dict(value=round(statistics.median(values), 3), unit=unit, spread=round(statistics.pstdev(values), 3), values=values))
            print(f"{facts['model']:28} {drafter:5} {arm:26} {statistics.median(speeds):8.1f} tok/s {statistics.median(ratios):6.2f} ×", flush=True)
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
result = dict(topic="parallel", device="cpu", context=1024, mode="exact", date=str(datetime.date.today()), commit=commit, contract_version=CONTRACT_VERSION,
              command="python " + " ".join([Path(__file__).name, *(Path(a).name for a in sys.argv[1:])]), machine=machine(), load=[began, load()],
              models=models, mismatches=wrong, tokens=args.n, rows=rows)
(Path(args.out)/f"parallel-{result['date']}.json").write_text(__import__("json").dumps(result, indent=1) + "\n")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
