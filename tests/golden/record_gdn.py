"""Record what Hugging Face's modelling code computes for the operations of chapter 03c.

    python tests/golden/record_gdn.py          # needs torch and transformers; writes tests/golden/gdn.json

Inputs are made from seeds by `record_contract.floats`, so the tests need neither torch nor transformers.
"""
import importlib, json, pathlib, sys, types
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from record_contract import floats

RATIOS = ((1, 1), (2, 4), (1, 3))                        # key heads, value heads
LAYER = dict(n_embd=40, K=2, V=4, D=32, rows=11)
ROUTERS = (('qwen3_moe', 16, 4), ('olmoe', 16, 4), ('gpt_oss', 8, 4), ('qwen3_next', 32, 10))


def rule_inputs(K, V, D=32, rows=6):
    "q, k, v, g (logarithm of the decay), beta and a state [V, value, key]."
    small = lambda seed, *shape: floats(seed + 10*V, *shape, low=-3, high=1)
    q, k, v = small(1, rows, K, D), small(2, rows, K, D), small(3, rows, V, D)
    g, beta = -np.abs(small(4, rows, V)), 1/(1 + np.exp(-small(5, rows, V)))
    return q, k, v, g, beta.astype(np.float32), small(6, V, D, D)


def layer_weights(n_embd, K, V, D, rows):
    "Weights of a whole layer, by Hugging Face's names, and its input."
    w = lambda seed, *shape: floats(seed, *shape, low=-6, high=-1)
    qkv = (2*K + V)*D
    return dict(in_proj_qkv=w(20, qkv, n_embd), in_proj_z=w(21, V*D, n_embd), in_proj_b=w(22, V, n_embd),
                in_proj_a=w(23, V, n_embd), out_proj=w(24, n_embd, V*D), conv1d=w(25, qkv, 4), dt_bias=w(26, V),
                A_log=w(27, V), norm=1 + w(28, D), x=floats(29, rows, n_embd, low=-2, high=2))


def router_logits(name, E): return floats(40 + len(name), 7, E, low=-2, high=3)


def sink_inputs():
    "q [rows, H, D], k and v [n, KV, D] as float16, sinks [H], of 4 query heads on 2 KV heads."
    k, v = (floats(s, 70, 2, 32, low=-3, high=2).astype(np.float16) for s in (51, 52))
    return floats(50, 70, 4, 32, low=-3, high=2), k, v, floats(53, 4, low=-1, high=3)


YARN = dict(theta=150000.0, dim=64, yarn=(32.0, 4096, 32.0, 1.0)), dict(theta=1e6, dim=128, yarn=(4.0, 32768, 32.0, 1.0))


def record():
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gpt_oss import modeling_gpt_oss as oss
    from transformers.models.qwen3_5 import configuration_qwen3_5 as config, modeling_qwen3_5 as qwen
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule
    t, numbers = torch.from_numpy, lambda a: [float(f'{v:.8g}') for v in np.asarray(a.detach(), np.float64).ravel()]
    out = {}
    for K, V in RATIOS:
        q, k, v, g, beta, S = rule_inputs(K, V)
        o, end = torch_recurrent_gated_delta_rule(
            *(t(a)[None] for a in (q, k, v, g, beta)), initial_state=t(S).transpose(1, 2)[None].contiguous(),
            output_final_state=True, use_qk_l2norm_in_kernel=True)
        out[f'rule {K} {V}'] = dict(o=numbers(o), state=numbers(end[0].transpose(1, 2)[:, :2]))
    w, n = layer_weights(**LAYER), LAYER
    cfg = config.Qwen3_5TextConfig(
        hidden_size=n['n_embd'], linear_num_key_heads=n['K'], linear_num_value_heads=n['V'], num_hidden_layers=1,
        linear_key_head_dim=n['D'], linear_value_head_dim=n['D'], linear_conv_kernel_dim=4, rms_norm_eps=1e-6,
        layer_types=['linear_attention'])
    layer = qwen.Qwen3_5GatedDeltaNet(cfg, 0)
    with torch.no_grad():
        for name, value in w.items():
            if name == 'x': continue
            target = getattr(layer, name)
            target = getattr(target, 'weight', target)
            target.copy_(t(value).reshape(target.shape))
        out['layer'] = numbers(layer(t(w['x'])[None])[0])
    for name, E, k in ROUTERS:
        module = importlib.import_module(f'transformers.models.{name}.modeling_{name}')
        router = next(c for n, c in vars(module).items() if n.endswith('TopKRouter'))(types.SimpleNamespace(
            num_experts_per_tok=k, num_experts=E, num_local_experts=E, hidden_size=E, norm_topk_prob=name != 'olmoe'))
        router.weight.data = torch.eye(E)                # so the hidden state is the logits
        _, weights, ids = router(t(router_logits(name, E)))
        out[f'router {name}'] = dict(ids=ids.tolist(), weights=numbers(weights))
    q, k, v, sinks = sink_inputs()
    module = torch.nn.Module()
    module.num_key_value_groups, module.sinks, module.training = 2, torch.nn.Parameter(t(sinks)), False
    mask = torch.full((70, 70), -torch.inf).triu(1)[None, None]
    heads = [t(a.astype(np.float32)).transpose(0, 1)[None] for a in (q, k, v)]
    y, _ = oss.eager_attention_forward(module, *heads, mask, scaling=0.25)
    out['sinks'] = numbers(y[0, -3:])
    experts = oss.GptOssExperts.__new__(oss.GptOssExperts)
    experts.alpha, experts.limit = 1.702, 7.0
    gate_up = floats(60, 50, 2, low=-2, high=6)
    out['swiglu_oai'] = numbers(experts._apply_gate(t(gate_up.reshape(1, -1))))
    for i, case in enumerate(YARN):
        class Config:
            hidden_size, num_attention_heads, head_dim = case['dim'], 1, case['dim']
            max_position_embeddings, factor = case['yarn'][1]*4, case['yarn'][0]
            rope_parameters = dict(rope_theta=case['theta'], factor=case['yarn'][0], rope_type='yarn', truncate=True,
                                   original_max_position_embeddings=case['yarn'][1], beta_fast=32.0, beta_slow=1.0)
            def standardize_rope_params(self): pass
        freq, mscale = ROPE_INIT_FUNCTIONS['yarn'](Config(), torch.device('cpu'))
        out[f'yarn {i}'] = dict(freq=numbers(freq.double()), mscale=float(mscale))
    return out


if __name__ == '__main__':
    path = pathlib.Path(__file__).with_name('gdn.json')
    path.write_text(json.dumps(record()) + '\n')
    print(path, path.stat().st_size)
