"""Why is a block drafter right so seldom? What a CPU can say, on texts that were held back in its training and on prompts.

    python data/trials/block_why.py --texts texts.npz -o data/results/cpu/block-why-DATE.json [--most 24]

For every fifth place of a text: how many leading guesses are the text's own tokens. The places are parted by whether the text is
saying things again there (the token behind the anchor is the one that followed the last place with the same eight tokens), and by
how far into the text they are. And the same blocks by the trainer's network (chapter 29f), from the same weights and from its own
residuals: are engine and trainer one network? texts.npz is what train_block.py leaves; own tokens of the model only."""
import argparse
import datetime
import json
import sys
from pathlib import Path

import numpy as np
import torch

torch.set_num_threads(1)

sys.path.insert(0, str(Path(__file__).parents[2]))

import alphabook.cpu_streams as backend
from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.blockdraft import load_draft
from alphabook.blockdrafter import block_beside, run_absorb, run_block
from alphabook.config import load_config
from alphabook.fetch import resolve_model
from alphabook.layers import Model
from alphabook.mini import MiniConfig, rope_tables
from alphabook.modelfile import ModelFile
from alphabook.protocol import commit
from alphabook.rounds import run_round
from alphabook.teaching import BlockConfig, block_guesses, block_states, load_weights, write_texts


def again(ids, n=8) -> np.ndarray: # int [T] → bool [T]
    "Is a token the one that followed the last place with the same n tokens before it?"
    seen, out = {}, np.zeros(len(ids), bool)
    for i in range(n, len(ids)):
        key = tuple(ids[i - n:i])
        out[i] = seen.get(key) == ids[i]
        seen[key] = ids[i]
    return out

def engine_blocks(model, own, ids, anchors): # → guesses [places, B − 1], residuals [T, taps·n]
    "What the engine's drafter guesses at some places of a text that is read once."
    B, said, taps = own.draft.block, {}, []
    cache, mine = model.new_cache(len(ids) + 8), own.new_cache(len(ids) + 72)
    cuts = sorted({*anchors.tolist(), *range(64, len(ids), 64), len(ids)})
    for cut in cuts:
        if cut > cache.n:
            run_round(model, cache, ids[cache.n:cut])
            rows = np.concatenate(cache.taps, 1)
            taps.append(rows)
            run_absorb(own, mine, rows)
            cache.commit(cut)
        if cut in anchors: said[cut] = [id for id, _ in run_block(own, mine, int(ids[cut]), B)]
    return np.array([said[a] for a in anchors.tolist()]), np.concatenate(taps)

def trainer_blocks(w, c, table, ids, kept, anchors): # kept: float32 [T, taps, n] → guesses [places, B − 1]
    "The same by the trainer's network."
    ids, anchors = torch.from_numpy(ids.astype(np.int64))[None], torch.from_numpy(anchors)[None]
    rope = rope_tables(MiniConfig(rope_dim=c.head_dim, rope_theta=c.rope_theta), c.n_ctx, "cpu")
    with torch.no_grad():
        states = block_states(w, c, table, ids, torch.from_numpy(kept)[None], anchors, rope)
        return block_guesses(w, c, table, states, ids.gather(1, anchors))[0].numpy()

def leading(said, ids, anchors) -> np.ndarray: # how many leading guesses are right
    "Right ones from the front."
    right = said == np.stack([ids[a + 1:a + 1 + said.shape[1]] for a in anchors])
    return np.cumprod(right, 1).sum(1)

def describe(lengths, most) -> dict:
    "Mean, and how often each guess is reached and right."
    return dict(n=len(lengths), value=float(np.mean(lengths)) if len(lengths) else None, most=most,
                chain=[float((lengths >= k).mean()) for k in range(1, most + 1)] if len(lengths) else [])

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("-o", dest="out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=24, help="texts")
    parser.add_argument("--block", type=Path, help="a drafter's file; default: the one beside the model")
    args = parser.parse_args()
    mf = ModelFile(resolve_model(None))
    side = ModelFile(args.block or block_beside(mf))
    model = Model(mf, load_config(mf), backend)
    own, z = load_draft(model, side), np.load(args.texts)
    d, weights, trunk = own.draft, load_weights(side), load_weights(mf)
    c = BlockConfig(n_layer=own.cfg.n_layer, n_head=own.cfg.n_head, n_kv_head=own.cfg.n_kv_head, head_dim=own.cfg.head_dim, n_ff=own.cfg.n_ff,
                    block=d.block, taps=d.taps, mask_id=d.mask_id, rope_theta=own.cfg.rope_theta, conv=d.conv, conv_group=d.conv_group,
                    rank=d.rank, top_k=d.top_k)
    table, found, repeats, same = trunk["token_embd.weight"], [], [], dict(own=[0, 0], engine=[0, 0], error=[])
    for i in range(min(args.most, len(z["ids"]))):
        ids, first = z["ids"][i].astype(np.int64), int(z["first"][i])
        anchors = np.arange(first, len(ids) - d.block + 1, 5)
        said, taps = engine_blocks(model, own, ids, anchors)
        loops = again(ids.tolist())
        repeats.append(float(loops[first:].mean()))
        found += zip(leading(said, ids, anchors), loops[anchors + 1], anchors, anchors - first)
        if i < 2:
            _, kept = write_texts(trunk, MiniConfig(), torch.from_numpy(ids)[None], torch.tensor([len(ids)]), d.taps, torch.zeros(1),
                                  torch.Generator())
            kept = kept[0].float().numpy()
            mine = taps.reshape(kept.shape)
            same["error"].append([float(np.abs(mine[:, t] - kept[:, t]).mean()/np.abs(kept[:, t]).mean()) for t in range(len(d.taps))])
            for name, rows in (("own", kept), ("engine", mine)):
                theirs = trainer_blocks(weights, c, table, ids, rows, anchors)
                same[name][0] += int((theirs == said).all(1).sum()); same[name][1] += len(said)
        print(i, f"{np.mean([f[0] for f in found]):.2f} right, {np.mean(repeats):.2f} of the tokens again", same, flush=True)
    lengths, loop, at, since = (np.array(x) for x in zip(*found))
    parts = {"all": loop == loop, "new": ~loop, "said again": loop, "new, within 64 tokens of its own": ~loop & (since < 64),
             "new, later": ~loop & (since >= 64), "before position 128": at < 128}
    rows = [dict(arm=name, unit="guesses right a round", **describe(lengths[p], d.block - 1)) for name, p in parts.items()]
    rows.append(dict(arm="tokens said again", unit="share", value=float(np.mean(repeats)), n=len(repeats), values=repeats))
    for name in ("own", "engine"): rows.append(dict(arm=f"blocks like the trainer's, {name} residuals", unit="share", value=same[name][0]/same[name][1], n=same[name][1]))
    rows.append(dict(arm="residuals, engine against trainer", unit="mean difference of mean size", value=float(np.mean(same["error"])), n=len(same["error"]),
                     values=np.mean(same["error"], 0).tolist()))
    for r in rows: print({k: v for k, v in r.items() if k != "values"})
    args.out.write_text(json.dumps(dict(topic="block-why", device="cpu", model="alphabook-mini", quantization="Q4_K, Q6_K", context=len(ids), mode="exact",
                                        date=datetime.date.today().isoformat(), commit=commit(), contract_version=CONTRACT_VERSION,
                                        command=f"python data/trials/block_why.py --most {args.most}", drafter=Path(side.path).name, rows=rows), indent=1))


if __name__ == "__main__": main()
