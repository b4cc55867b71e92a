"""Small models of every published family, made and computed by Hugging Face's transformers.

    pip install transformers torch
    python tests/golden/hf_models.py qwen35moe FOLDER

writes FOLDER as a checkpoint of that family looks: config.json, model.safetensors, a tokenizer and a chat template.
The configuration is the published one, with fewer layers, experts and heads; head sizes, rotary shares, GDN widths,
epsilons and bases are kept. The weights are drawn from PCG64's raw bits, whose stream numpy guarantees. Rows of
matrices are windows of one pool of such numbers, so that a model packs to a fraction of its size, and every weight is
a float16: a file of type F16 holds the same model. Norms, decays, biases and sinks vary as much as in trained models.

This module needs transformers and torch, but neither llama.cpp nor alphabook.
"""
import json, sys
from pathlib import Path

import numpy as np

POOL, BLOCK = 384, 256                       # the pool: so many blocks of so many weights
PROMPT = 64                                  # ids of the recorded prompt
TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ('<|endoftext|>', '<|im_start|>', '<|im_end|>')
MERGES = ('Ġ t', 'h e', 'i n', 'e r', 'Ġ a', 'Ġt he', 'o n', 'r e')
VOCAB = 288                                  # a little more than tokens, as published models have

# Published with truncate=False, which no GGUF key tells: llama.cpp rounds the range that YaRN blends, as True does
YARN = dict(rope_type='yarn', factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=True, rope_theta=150000,
            original_max_position_embeddings=4096)
MROPE = dict(rope_type='default', rope_theta=10_000_000, partial_rotary_factor=0.25, mrope_interleaved=True,
             mrope_section=[11, 11, 10])
ATTENTION = dict(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, vocab_size=VOCAB,
                 tie_word_embeddings=False, bos_token_id=None, eos_token_id=258, pad_token_id=256)
GDN = dict(ATTENTION, head_dim=256, num_hidden_layers=4, max_position_embeddings=262144, linear_num_key_heads=2,
           linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4)
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=256)

# family: (model_type, class, pre-tokenizer's name in GGUF, MTP blocks, configuration)
FAMILIES = {
    'qwen2': ('qwen2', 'Qwen2ForCausalLM', 'qwen2', 0, dict(
        ATTENTION, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, intermediate_size=256,
        max_position_embeddings=32768, rope_parameters=dict(rope_type='default', rope_theta=1e6))),
    'llama': ('llama', 'LlamaForCausalLM', 'llama-bpe', 0, dict(
        ATTENTION, num_hidden_layers=3, head_dim=128, intermediate_size=256, max_position_embeddings=131072,
        rms_norm_eps=1e-5, rope_parameters=dict(
            rope_type='llama3', rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=8192))),
    'qwen3': ('qwen3', 'Qwen3ForCausalLM', 'qwen2', 0, dict(
        ATTENTION, num_hidden_layers=3, head_dim=128, intermediate_size=256, max_position_embeddings=40960,
        rope_parameters=dict(rope_type='default', rope_theta=1e6))),
    'qwen3moe': ('qwen3_moe', 'Qwen3MoeForCausalLM', 'qwen2', 0, dict(
        ATTENTION, **EXPERTS, num_hidden_layers=4, head_dim=128, intermediate_size=768, max_position_embeddings=40960,
        norm_topk_prob=True, rope_parameters=dict(rope_type='default', rope_theta=1e6))),
    'qwen3next': ('qwen3_next', 'Qwen3NextForCausalLM', 'qwen2', 1, dict(
        GDN, **EXPERTS, shared_expert_intermediate_size=256, intermediate_size=512, norm_topk_prob=True,
        rope_parameters=dict(rope_type='default', rope_theta=10_000_000, partial_rotary_factor=0.25))),
    'qwen35': ('qwen3_5_text', 'Qwen3_5ForCausalLM', 'qwen35', 1, dict(
        GDN, intermediate_size=512, linear_num_value_heads=6, mtp_num_hidden_layers=1, rope_parameters=MROPE)),
    'qwen35moe': ('qwen3_5_moe_text', 'Qwen3_5MoeForCausalLM', 'qwen35', 1, dict(
        GDN, **EXPERTS, shared_expert_intermediate_size=256, mtp_num_hidden_layers=1, rope_parameters=MROPE)),
    'qwen4exp': ('qwen4_exp_text', 'Qwen4ExpForCausalLM', 'qwen35', 0, dict(
        GDN, **EXPERTS, shared_expert_intermediate_size=256, num_hidden_layers=8, linear_num_value_heads=6, hc_count=4,
        hc_lowrank=64, output_gate_type='sigmoid', rope_parameters=MROPE, ple_layer_ids=[2], ple_embed_dim=256,
        ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=8, ngram_vocab_size_base=500, split_ngram_parts=4,
        make_ngram_vocab_size_divisible_by=128, indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=128,
        indexer_budget=16, indexer_compress_ratio=4)),
    'olmoe': ('olmoe', 'OlmoeForCausalLM', 'olmo', 0, dict(
        ATTENTION, num_hidden_layers=4, num_attention_heads=2, intermediate_size=256, num_experts=8,
        num_experts_per_tok=3, norm_topk_prob=False, max_position_embeddings=4096, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type='default', rope_theta=10000.0))),
    'gpt-oss': ('gpt_oss', 'GptOssForCausalLM', 'gpt-4o', 0, dict(
        ATTENTION, hidden_size=320, num_hidden_layers=4, head_dim=64, num_attention_heads=8, intermediate_size=320,
        num_local_experts=8, num_experts_per_tok=3, sliding_window=32, max_position_embeddings=131072,
        rms_norm_eps=1e-5, swiglu_limit=7.0, rope_parameters=YARN)),
    'gemma3': ('gemma3_text', 'Gemma3ForCausalLM', 'gpt-2', 0, dict(
        ATTENTION, vocab_size=270, num_hidden_layers=7, head_dim=256, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=256, max_position_embeddings=32768, sliding_window=32, tie_word_embeddings=True,
        query_pre_attn_scalar=256, rope_theta=1e6, rope_local_base_freq=10000.0)),
}
OFFSET_NORMS = ('qwen3next', 'qwen35', 'qwen35moe', 'qwen4exp', 'gemma3')    # norms multiply by 1 + weight

# What a layer adds to the residual stream is a small part of it, as in trained models; else each rounding would grow
WRITERS = ('o_proj', 'out_proj', 'down_proj')


class Draw:
    "Numbers from PCG64's raw bits by exact operations."
    def __init__(self, seed): self.bits = np.random.PCG64(seed)

    def below(self, n, count): return (self.bits.random_raw(count) >> np.uint64(32)).astype(np.int64) % n

    def order(self, n): return np.argsort(self.bits.random_raw(n), kind='stable')

    def grid(self, low, high, steps, count):
        "`count` of the numbers low/steps … high/steps."
        return (low + self.below(high - low + 1, count)).astype(np.float32) / np.float32(steps)

    def pool(self):
        "Blocks of about normal integers (sums of four), deviation about 9, over 128: 1.1 / sqrt(256)."
        sums = sum(self.below(17, POOL * BLOCK) for _ in range(4)) - 32
        return sums.astype(np.float32) / np.float32(128)


class Weights:
    "The values of each parameter, by its name and shape."
    def __init__(self, family):
        self.family, self.draw = family, Draw(sorted(FAMILIES).index(family) + 100)
        self.pool = self.draw.pool()

    def rows(self, shape, scale=1.0):
        "A matrix (or several), each row a window of the pool, a different one while there are any."
        cols = shape[-1]
        n, step = int(np.prod(shape[:-1])), min(BLOCK, 1 << max(cols & -cols, 1).bit_length() - 1)
        places = (len(self.pool) - cols) // step + 1
        starts = np.concatenate([self.draw.order(places) for _ in range(-(-n // places))])[:n] * step
        return (self.pool[starts[:, None] + np.arange(cols)] * np.float32(scale)).reshape(shape)

    def __call__(self, name, shape):
        count, last = int(np.prod(shape)), name.rsplit('.', 2)[-2:]
        grid = lambda low, high, steps: self.draw.grid(low, high, steps, count).reshape(shape)
        if name.endswith('A_log'): return grid(0, 22, 8)                          # decay rates 1 … 16
        if name.endswith('dt_bias'): return grid(-24, -4, 4)
        if name.endswith('sinks'): return grid(-8, 8, 4)
        if name.endswith('bias'): return grid(-8, 8, 32)
        if 'conv1d' in name: return grid(-12, 12, 16)
        if 'norm' in last[0]:                                            # q and k norms larger: sharper attention
            offset = 0 if self.family in OFFSET_NORMS and 'linear_attn' not in name else 1
            return grid(-12, 12, 32) + np.float32(offset) + np.float32(0.25 * (last[0] in ('q_norm', 'k_norm')))
        if 'embed' in name and 'ple' not in name: return self.rows(shape, 14 if self.family != 'gemma3' else 1)
        if last[0] in ('gate', 'router') or 'shared_expert_gate' in name: return self.rows(shape, 2)
        scale = 0.125 if any(w in name for w in WRITERS) else 1.5
        if self.family == 'gpt-oss' and last[0] in ('q_proj', 'k_proj'): scale = 0.5         # without norms
        if self.family == 'gpt-oss' and 'experts' in name:                       # stored as (inputs, outputs)
            return np.ascontiguousarray(self.rows((shape[0], shape[2], shape[1]), scale).transpose(0, 2, 1))
        return self.rows(shape, scale)


def config_of(family, **changes):
    "The family's configuration, and its model's class."
    import transformers
    model_type, cls, _, mtp, keys = FAMILIES[family]
    config = transformers.AutoConfig.for_model(model_type, **keys | changes)
    config.architectures = [cls]
    return config, getattr(transformers, cls)


def fill(module, weights, prefix=''):
    "Set every parameter of a module."
    import torch
    with torch.no_grad():
        for name, p in sorted(module.named_parameters()):
            p.copy_(torch.from_numpy(weights(prefix + name, tuple(p.shape))))


def build(family, **changes):
    "The model, and its MTP block (or None), both float32, for evaluation."
    import torch
    torch.set_grad_enabled(False)
    config, cls = config_of(family, **changes)
    config._attn_implementation = 'eager'
    model, weights = cls(config).eval().float(), Weights(family)
    fill(model, weights)
    if not FAMILIES[family][3]: return model, None
    layer = type(model.model.layers[-1])
    norm = type(model.model.norm)
    from transformers.modeling_layers import MtpLayer
    at = config.layer_types.index('full_attention')           # the block is a layer of full attention
    block = MtpLayer(config, layer, norm, at).eval().float()
    fill(block, weights, 'mtp.')
    return model, block


def mtp_tensors(block):
    "The block's tensors by their names in a checkpoint."
    outer = {'eh_proj.': 'fc.', 'enorm.': 'pre_fc_norm_embedding.', 'hnorm.': 'pre_fc_norm_hidden.',
             'post_norm.': 'norm.'}
    for name, p in block.state_dict().items():
        if name.startswith('mtp_block.'): yield 'mtp.layers.0.' + name.removeprefix('mtp_block.'), p
        else: yield 'mtp.' + next(new + name.removeprefix(old) for old, new in outer.items() if name.startswith(old)), p


def mtp_logits(model, block, ids):
    "Logits of the MTP block: row t from the hidden state at t and the token at t + 1 (n - 1 rows)."
    import torch
    x = torch.tensor([ids])
    hidden = model.model(input_ids=x).last_hidden_state[:, :-1]
    embeds = model.get_input_embeddings()(x[:, 1:])
    n = embeds.shape[1]
    positions = torch.arange(n)[None]
    mask = torch.full((n, n), float('-inf')).triu(1)[None, None]
    rope = model.model.rotary_emb(embeds, positions)
    out = block(embeds, hidden, position_embeddings=rope, attention_mask=mask, position_ids=positions, cache=None)
    return model.lm_head(out)[0].numpy()


def routers(model):
    "Modules that choose experts, in the order of layers."
    return [m for name, m in model.named_modules() if type(m).__name__.endswith('TopKRouter')]


def first_topk(self, k, dim=-1):
    "Tensor.topk whose ties go to the lower index: torch leaves them open; index scores of exactly 0 tie often (ReLU)."
    import torch
    values, at = self.sort(dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), at.narrow(dim, 0, k)))


def compute(family, ids, model, block):
    "{logits, mtp_logits, router (layers, n, experts)} of a prompt, by transformers."
    import torch
    if family == 'qwen4exp': torch.Tensor.topk = first_topk
    seen = []
    hooks = [m.register_forward_hook(lambda m, a, out: seen.append(out[0].numpy().copy())) for m in routers(model)]
    out = {'logits': model(input_ids=torch.tensor([ids])).logits[0].numpy()}
    for h in hooks: h.remove()
    if seen: out['router'] = np.stack([r.reshape(len(ids), -1) for r in seen])
    if block is not None: out['mtp_logits'] = mtp_logits(model, block, ids)
    return out


def prompt(family, n=PROMPT):
    "The ids of the recorded prompt: random ones, a repeat, and an end mark within."
    ids = Draw(7).below(FAMILIES[family][4]['vocab_size'], n)
    ids[40:56] = ids[8:24]
    ids[30] = 258 if family == 'qwen4exp' else 256                # its phrases end there
    return [int(i) for i in ids]


def write_tokenizer(folder):
    "A byte-level BPE tokenizer of 267 tokens with a chat template."
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    letters = [chr(b if b in plain else next(other)) for b in range(256)]
    tokens = letters + list(SPECIAL) + [m.replace(' ', '') for m in MERGES]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [tuple(m.split()) for m in MERGES]))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=t, eos_token='<|im_end|>', pad_token='<|endoftext|>')
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


MULTIMODAL = {'qwen35': 'qwen3_5', 'qwen35moe': 'qwen3_5_moe', 'qwen4exp': 'qwen4_exp'}  # published with a vision tower


def nest(family, config, tensors):
    "Configuration and tensors named as in the published checkpoint, which holds more than text."
    kind = MULTIMODAL[family]
    outer = dict(architectures=[config.pop('architectures')[0].replace('ForCausalLM', 'ForConditionalGeneration')],
                 model_type=kind, text_config=config, image_token_id=260, video_token_id=261, vision_start_token_id=262,
                 vision_end_token_id=263, tie_word_embeddings=False)
    new = lambda name: name.replace('model.', 'model.language_model.', 1) if name.startswith('model.') else name
    return outer, {new(name): p for name, p in tensors.items()}


def save(family, folder, model, block, published=False):
    "Write the checkpoint as published ones look; `published`: also with their outer names."
    from safetensors.torch import load_file, save_file
    folder = Path(folder)
    model.save_pretrained(folder, max_shard_size='100GB')
    tensors = load_file(folder / 'model.safetensors')
    if block is not None: tensors |= {n: p.contiguous() for n, p in mtp_tensors(block)}
    config = json.loads((folder / 'config.json').read_text())
    if family == 'qwen4exp':                                      # published under the older name
        config['layer_types'] = [t.replace('indexed', 'full') for t in config['layer_types']]
    if published and family in MULTIMODAL: config, tensors = nest(family, config, tensors)
    save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
    (folder / 'config.json').write_text(json.dumps(config, indent=2) + '\n')
    write_tokenizer(folder)


def main(family, folder):
    model, block = build(family)
    save(family, folder, model, block)
    ids = prompt(family)
    out = compute(family, ids, model, block)
    if family == 'gpt-oss':                                       # how far the published setting is from that
        published, _ = build(family, rope_parameters=YARN | {'truncate': False})
        out['logits_published'] = compute(family, ids, published, None)['logits']
    np.savez(Path(folder) / 'transformers.npz', ids=np.array(ids, np.int32), **out)


if __name__ == '__main__': main(*sys.argv[1:3])
