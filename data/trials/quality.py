"""What each type of weights costs, in both engines and by both quantizers; what each type of keys and values costs; needles.

    python data/trials/quality.py [-m FILE …] [--types Q8_0,Q4_0,…] [--windows 4] [--length 256] [--needles 512,1024,2048]
                                  [--threads N] [--peer-python PATH] [--work FOLDER] [--keep FILE] [-o FILE]

The base of all distances is llama.cpp on the model's weights as float32, with float32 keys and values and without flash attention. For each type two files are made of these float32 weights, by `alphabook quantize` and by llama.cpp's quantizer, and each is run by both engines on the same windows. A model that is quantized already (as all of these are) becomes float32 first, so the figures are about what is added.
It takes hours on a small machine: with --keep the rows of each arm are written as they come, a line of JSON for each arm, and a run that
was interrupted leaves out what is there.
"""
import argparse, datetime, json, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.cpu_streams import set_threads
from alphabook.engine import Engine
from alphabook.fetch import resolve_model
from alphabook.kv import EXACT_KV, parse_kv
from alphabook.modelfile import ModelFile
from alphabook.peer import Peer
from alphabook.protocol import commit, load, machine, model_facts, write_result
from alphabook.quality import (KINDS, EngineRows, PeerRows, StoredRows, cut_windows, find_needles, read_text, save_rows,
                               score_texts, text_hash)
from alphabook.quantizing import plan_types, quantize_file

KV = "f32", "q8_0", "q8_0:q4_0", "q4_0"
UNITS = {"perplexity", "perplexity ÷ base's", "perplexity ÷ base's ±", "KL", "KL ±", "KL, 99th percentile", "same favourite"}
QUANTIZE = """
import ctypes, llama_cpp, sys
p = llama_cpp.llama_model_quantize_default_params()
p.nthread, p.ftype, p.allow_requantize = 2, getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + sys.argv[3]), True
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(p)))
"""

def make_theirs(python, source, out, type):
    "llama.cpp's file of a type; False if it knows no such type."
    done = subprocess.run([python, "-c", QUANTIZE, str(source), str(out), type], capture_output=True)
    return done.returncode == 0 and out.exists()

def measure(path, types, args, threads, note):
    "Rows for one model."
    work, rows = Path(tempfile.mkdtemp(dir=args.work)), []
    exact = Engine.load(path, "cpu", threads=threads)
    facts, n_vocab, length, n = model_facts(exact), exact.cfg.n_vocab, args.length, args.windows
    windows = [w for k in KINDS for w in cut_windows(exact.tokenizer, read_text(k), length, n)]
    kept, about = {}, dict(model=facts["model"], windows=n, length=length)
    for line in args.keep.read_text().splitlines() if args.keep and args.keep.exists() else ():
        told = json.loads(line)
        if told["about"] == about: kept[json.dumps(told["arm"])] = told["rows"]
    def keep(fields, found):
        if args.keep and json.dumps(fields) not in kept:
            with args.keep.open("a") as f: f.write(json.dumps(dict(about=about, arm=fields, rows=found)) + "\n")
        rows.extend(found)
    def there(**fields):
        found = kept.get(json.dumps(fields))
        if found: rows.extend(found)
        return bool(found)
    def add(source, base, **fields):
        start = time.perf_counter()
        found = score_texts(exact, KINDS, length, n, "", source, base)[1]
        keep(fields, [dict(r, model=facts["model"], **fields) for r in found if r["unit"] in UNITS])
        cells = {r["unit"]: r["value"] for r in found if r["text"] == "all"}
        note(facts["model"], *fields.values(), *(f"{k} {v:.5g}" for k, v in cells.items() if k in UNITS),
             f"{time.perf_counter() - start:.0f} s")
    def both(file, base, **fields):
        if not there(**fields, arm="alphabook"):
            engine = Engine.load(file, "cpu", n_ctx=max(length, 64), threads=threads)
            add(EngineRows(engine, length), base, **fields, arm="alphabook")
        peer = Peer(args.peer_python, model=str(file), threads=threads, n_ctx=max(length, 256))
        try:
            if not there(**fields, arm="llama.cpp"): add(PeerRows(peer, n_vocab), base, **fields, arm="llama.cpp")
        finally: peer.close()
        return peer.facts
    for kv in KV:
        try: other = EngineRows(exact, length, kv=parse_kv(kv))
        except ValueError as e: note(facts["model"], kv, e); continue
        how = dict(quantization=facts["quantization"], maker="", arm=f"--kv {kv}", mode="fast")
        if not there(**how): add(other, EngineRows(exact, length), **how)
    for size in args.needles:
        if size + 10 > exact.n_ctx or there(needles=size): continue
        keep(dict(needles=size), [dict(model=facts["model"], quantization=facts["quantization"], maker="", arm="exact", text="english",
                                       context=size, depth=depth, unit="needles found", value=share, n=3, spread=None)
                                  for depth, share in find_needles(exact, read_text("english"), size).items()])
        note(facts["model"], "needles", size, [r["value"] for r in rows if r["context"] == size and "depth" in r])
    whole, stored = work/"f32.gguf", work/"base.gguf"
    quantize_file(exact.mf, whole, "F32", threads=threads)
    peer = Peer(args.peer_python, model=str(whole), threads=threads, n_ctx=max(length, 256), kv="f32")
    try: save_rows(stored, PeerRows(peer, n_vocab), windows, n_vocab)
    finally: peer.close()
    base = StoredRows(stored, windows)
    both(Path(exact.mf.path), base, quantization="as it is: " + facts["quantization"], maker="its publisher")
    for type in types:
        ours, theirs = work/f"ours-{type}.gguf", work/f"theirs-{type}.gguf"
        made = quantize_file(whole, ours, type, threads=threads)
        found = both(ours, base, quantization=type, maker="alphabook", bits=round(made["bits_per_weight"], 3))
        ours.unlink()
        if not make_theirs(args.peer_python, whole, theirs, type): note(type, "llama.cpp has no such quantization"); continue
        with ModelFile(theirs) as mf, ModelFile(whole) as source:
            plan, weights = plan_types(source, type), sum(t.nbytes//t.type.size*t.type.block for t in mf.tensors.values())
            other = sum(plan[k] != t.type.name for k, t in mf.tensors.items())
        both(theirs, base, quantization=type, maker="llama.cpp", bits=round(8*theirs.stat().st_size/weights, 3), other_types=other)
        theirs.unlink()
    base.file.close()
    for left in work.iterdir(): left.unlink()
    work.rmdir()
    return rows, facts, found

def main():
    "The command line."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", action="append"); p.add_argument("--windows", type=int, default=4)
    p.add_argument("--types", default="Q8_0,Q6_K,Q5_K_M,Q5_0,Q4_K_M,IQ4_NL,Q4_1,Q4_0")
    p.add_argument("--length", type=int, default=256); p.add_argument("--needles", default="512,1024,2048")
    p.add_argument("--peer-python", default=sys.executable); p.add_argument("--work"); p.add_argument("-o")
    p.add_argument("--keep", type=Path)
    p.add_argument("--threads", type=int)
    args = p.parse_args()
    args.needles = [int(x) for x in args.needles.split(",") if x]
    threads, before, rows, facts = set_threads(args.threads), load(), [], []
    for path in args.m or [None]:
        found = measure(resolve_model(path), args.types.split(","), args, threads, lambda *x: print(*x, flush=True))
        rows += found[0]; facts.append(found[1])
    models = "".join(f" -m {Path(m).name}" for m in args.m or ())
    names = [f["model"] for f in facts]
    result = dict(topic="quality-" + (names[0] if len(names) == 1 else "models"), device="cpu", drafter="none", width=None,
                  date=datetime.date.today().isoformat(), commit=commit(), mode="exact", contract_version=CONTRACT_VERSION,
                  command=f"python data/trials/quality.py{models} --types {args.types} --windows {args.windows} "
                          f"--length {args.length} --needles {','.join(map(str, args.needles))}",
                  base="llama.cpp on float32 weights, float32 keys and values, no flash attention; --kv rows: exact mode",
                  peer=found[2], machine=machine(), load=[before, load()], texts={k: text_hash(k) for k in KINDS},
                  models=facts, rows=rows)
    print(write_result(result, args.o or ROOT/"data"/"results"))

if __name__ == "__main__": main()
