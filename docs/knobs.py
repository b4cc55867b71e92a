"""What the code cannot say about its knobs: why each is there, what it gains as measured, what happens without it."""
import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "data" / "results"

def newest(topic: str, device: str = "cpu") -> dict:
    "The newest file of a topic; an object without rows if there is none."
    paths = sorted((RESULTS / device).glob(f"{topic}-2*.json"), key=lambda p: p.stem[-10:])
    return json.loads(paths[-1].read_text(encoding="utf-8")) if paths else dict(rows=[])

def kv_gain() -> str:
    "Of 8-bit keys and values, at the longest context measured."
    d = newest("fast-mode")
    rows = [r for r in d["rows"] if r["unit"] == "tok/s ÷ f16's" and r["arm"] == "q8_0"]
    if not rows: return ""
    r = max(rows, key=lambda r: (r["context"], r["value"]))
    cost = next((x["value"] for x in d["rows"] if (x["model"], x["arm"], x["unit"]) == (r["model"], "q8_0", "kl_mean")), None)
    return (f"q8_0: {r['value']:.2f} times as fast at {r['context']:,} positions of {r['model']}"
            + (f", for {cost:.4f} nats a token" if cost else ""))

def drafter_gain() -> str:
    "Of drafts, by set of prompts."
    d = newest("drafters-alphabook-mini")
    rows = [r for r in d["rows"] if r["arm"] == "auto" and r["unit"] == "tok/s ÷ plain's"]
    return "auto, alphabook-mini: " + ", ".join(f"{r['set']} {r['value']:.2f}" for r in rows) + " times plain" if rows else ""

FLAGS = {   # flag: why it is there, gain, what happens where it can't be had
    "--model": dict(why="any GGUF file, or a name, so that nobody has to know where a model lies", **{"else": "alphabook-mini, from the package"}),
    "--hf-repo": dict(why="most files lie on a hub, and people know them by these names", **{"else": "`-m`; without a network one line that says so"}),
    "--mode": dict(why="exact gives one result whoever computes it; fast may leave it where that pays; plain is the control",
                   gain="see `--drafter` and `--kv`", **{"else": "exact"}),
    "--drafter": dict(why="to hold a drafter alone, or none, against the choice that is made for you", gain=drafter_gain(),
                      **{"else": "auto: what the clock says pays"}),
    "--draft-model": dict(why="published MTP blocks and block drafters come in files of their own", **{"else": "the model's own block, if it has one, and NAME-dflash.gguf beside it"}),
    "--device": dict(why="numpy is the specification, to check the others with", **{"else": "auto takes the GPU if it can, else the CPU; cuda without one is an error that says what is missing"}),
    "--ctx": dict(why="keys and values are allocated for it: less context, less memory", **{"else": "what the model was trained for"}),
    "--threads": dict(why="a machine that does other things, too; the text does not depend on it", **{"else": "all cores"}),
    "--vram": dict(why="to leave room for others, or to imitate a smaller card; the CPU computes a mixture's experts that don't fit", **{"else": "no effect on a CPU"}),
    "--ram": dict(why="the same for RAM: experts that don't fit wait on the disk", **{"else": "what is free, less 1 GiB, and only where a mixture needs it"}),
    "--kv": dict(why="at long contexts keys and values are most of what is read", gain=kv_gain(), **{"else": "f16; other types need `--mode fast`, and say so"}),
    "--json": dict(why="to be read by programs: one object on standard output, all else on standard error"),
    "-n": dict(why="an end for models that know none"),
    "--temp": dict(why="variety; the draw is a function of seed and position, so drafts and devices don't change it", **{"else": "the favourite is taken"}),
    "--top-k": dict(why="to keep the unlikely out, by rank", **{"else": "all tokens"}),
    "--top-p": dict(why="to keep the unlikely out, by what the likely ones make up", **{"else": "all tokens"}),
    "--min-p": dict(why="to keep the unlikely out, next to the favourite", **{"else": "all tokens"}),
    "--stop": dict(why="where an answer has an end of which the model doesn't know", **{"else": "the model's own end tokens"}),
    "--prompt": dict(why="a text that fits into a line", **{"else": "generate: `-f`, or standard input; compare: two texts of its own"}),
    "--file": dict(why="a text that doesn't fit into a line", **{"else": "`-p`, or standard input"}),
    "--trace": dict(why="which experts are worth their place is a question to a text (chapter 19)", **{"else": "nothing is kept"}),
    "--system": dict(why="what shall hold for the whole conversation", **{"else": "what the template says"}),
    "--shape": dict(why="to plan before a download"), "--card": dict(why="to plan before a purchase", **{"else": "the card that is here"}),
    "--like": dict(why="published shapes, without a download"), "--layers": dict(why="a part of a shape that doesn't fit, layers as wide as its own", **{"else": "all"}),
    "--mtp": dict(why="drafts need a block that makes them", **{"else": "none"}),
    "--type": dict(why="bits a weight: size and speed against quality; chapter 26c has the table"),
    "--widths": dict(why="what a verify round costs, and that it changes no bit, depends on its rows"),
    "--all": dict(why="before a release, not before lunch", **{"else": "a minute's worth"}),
    "--arms": dict(why="fewer arms, more passes in the same time", **{"else": "all that the model has"}),
    "--sets": dict(why="what a draft is worth depends on the text", **{"else": "decoding, prompts and rounds on a fixed text"}),
    "--prompts": dict(why="a shorter run, with a wider interval", **{"else": "all of a set"}),
    "--topic": dict(why="two runs of one model on a day would write one file"),
    "--peer-python": dict(why="the peer lives in its own house", **{"else": "`$ALPHABOOK_PEER_PYTHON`, or this Python"}),
    "--peer-model": dict(why="some servers have several", **{"else": "the first that it lists"}),
    "--text": dict(why="a model differs most on the text that is yours", **{"else": "English, French and code that travel with the package"}),
    "--windows": dict(why="more text, a smaller error"), "--length": dict(why="what is lost far back shows in long windows only"),
    "--depths": dict(why="models forget the middle first"), "--tries": dict(why="one number may be found by luck"),
    "--tasks": dict(why="a first impression in minutes; the error bar says how much it is worth", **{"else": "the whole set"}),
    "--answer": dict(why="a model that loops would never be done"),
    "--host": dict(why="other machines can only reach an address that is theirs, too", **{"else": "this machine alone"}),
    "--port": dict(why="several servers, or a port that is taken"),
    "--log": dict(why="what was slow, without what was said"), "--grace": dict(why="an update needn't cut anybody off"),
    "--seed": dict(why="the token at a position is a function of logits, parameters, seed and position: a text can be had again"),
    "--hash": dict(why="to hold the logits of two machines against each other"),
    "--cold": dict(why="the first start after an installation compiles kernels, which users notice"),
    "--peer": dict(why="a speed means little alone"), "--peer-key": dict(why="servers of others want one"),
    "--out": dict(why="a measurement that isn't kept is a rumour"),
    "--report": dict(why="a page can be sent to somebody who has none of this installed"), "--passes": dict(why="arms take turns; more passes, a surer median"),
    "--split": dict(why="choices are made on train, figures given on test"),
    "--base": dict(why="what was changed, and from what"), "--save": dict(why="to hold next week's version against today's"),
    "--answers": dict(why="164 answers take an hour on a small machine: an interrupted run goes on, and what was said can be read",
                      **{"else": "answers are marked and forgotten"}),
    "--minutes": dict(why="a part of a set, spread over it, with an error bar that says so"),
    "--shapes": dict(why="speed doesn't depend on what weights say: no download, and shapes that nobody has published weights of"),
    "--run-code": dict(why="text becomes a program only if you say so", **{"else": "humaneval is refused"}),
    "--tensor": dict(why="a mix of your own: where a coarse weight hurts is a question to try"),
    "--api-key": dict(why="who can reach the port can use the model", **{"else": "no key; a warning if the address is not this machine's"}),
    "--parallel": dict(why="several answers share the rows of a round, with the bits that each has alone; each needs keys and values of its own"),
    "--queue": dict(why="a bounded wait: a full queue says so at once"),
}
ENVIRONMENT = {
    "ALPHABOOK_CACHE": dict(does="the folder of fetched models", why="home folders are small on some machines", **{"else": "`~/.cache/alphabook`"}),
    "ALPHABOOK_API_KEY": dict(does="the key of `serve`", why="not to be read in a list of processes", **{"else": "`--api-key`, or none"}),
    "ALPHABOOK_AUTO": dict(does="0: nothing is chosen for what is left unset, such as slots for experts", why="to measure without a plan",
                           **{"else": "1: a bare `-m` does what `alphabook plan` says"}),
    "ALPHABOOK_PEER_PYTHON": dict(does="the Python in which llama-cpp-python is installed", why="the peer lives in its own house", **{"else": "this one"}),
    "ALPHABOOK_VECTORS": dict(does="the vector instructions of the CPU's products: vnni, avx2 or portable",
                              why="to check that they give the same bits, and to see what each is worth",
                              **{"else": "the best that the processor has"}),
}
