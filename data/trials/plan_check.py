"Predictions of `alphabook plan` beside the newest recorded run of `alphabook bench` on this kind of machine."
import json, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from results import TODAY, write

from alphabook.plan import seconds_per_token

UNITS = {"smollm2": 30, "gemma3-270m": 18, "qwen2.5-coder-0.5b": 24, "alphabook-mini": 11.5}   # `layer_units`

def main():
    source = sorted((ROOT / "data/results/cpu").glob("bench-cpu-20*.json"))[-1]
    run, rows = json.loads(source.read_text(encoding="utf-8")), []
    for m in run["models"]:
        name = m["model"]
        value = {r["arm"]: r["value"] for r in run["rows"] if r["model"] == name and (r["width"], r["unit"]) in ((0, "GB/s"), (1, "tok/s"))}
        predicted = 1/seconds_per_token(m["bytes_per_token"], UNITS[name], value["memory, 2 threads"])
        shared = dict(model=name, quantization=m["quantization"], width=1, context=96, drafter="none", n=1, spread=0.0)
        rows += [dict(shared, arm="predicted", value=round(predicted, 2), unit="tok/s"),
                 dict(shared, arm="measured", value=round(value["plain"], 2), unit="tok/s", n=5),
                 dict(shared, arm="error of the prediction", value=round(100*(predicted/value["plain"] - 1), 1), unit="%")]
    path = ROOT / f"data/results/cpu/plan-{TODAY}.json"
    write(path, "plan", rows, "python data/trials/plan_check.py", contract_version=run["contract_version"], mode="exact",
          measured_in=source.name, threads=run["threads"])
    for r in rows: print(r["model"], r["arm"], r["value"], r["unit"])

if __name__ == "__main__": main()
