"""Memory for intermediate results, estimated from the model's shape.

llama.cpp plans these buffers with an allocator that reuses and fragments; only a trial load tells
their size exactly. The formulas were fitted to what the programs print (`compute buffer size`) for
generated models of eight architectures; tests hold them to 0.75 to 1.9 times the real size.
"""

from swapmoe import attention
from swapmoe.gguf_info import ModelFacts

FLOAT = 4
MASK_BYTES = 2
"""For each token of a micro-batch and each cell: flash attention takes the mask in F16."""


def buffer_bytes(facts: ModelFacts, ctx: int, ubatch: int, *, outputs: int = 1) -> int:
    """Bytes of the compute buffer for micro-batches of `ubatch` tokens in a context of `ctx`.

    `outputs` is the number of tokens in a batch whose logits are wanted: 1 in llama-cli and
    llama-server (for each slot), the whole micro-batch in llama-bench and llama-perplexity.
    """
    ubatch = min(ubatch, ctx)
    stages = (_experts(facts), _feed_forward(facts), _attention(facts), _indexer(facts))
    floats = max(stages) * ubatch
    embd, vocab = facts.integer("embedding_length"), vocabulary(facts)
    outputs = min(outputs, ubatch)
    floats = max(floats, vocab * outputs + 3 * embd * ubatch)
    return FLOAT * floats + ubatch * _per_cell(facts, ctx)


def scratch_bytes(facts: ModelFacts, ubatch: int) -> int:
    """Bytes that the CPU backend allocates besides: quantised inputs, rows sorted by expert."""
    used, experts = facts.expert_used_count, facts.expert_count
    width = max(used * _expert_ffn(facts), facts.integer("embedding_length"))
    return ubatch * (width * 34 // 32 + 8 * experts * used)


def vocabulary(facts: ModelFacts) -> int:
    """Tokens of the vocabulary: the rows of the output, or of the embeddings that stand in."""
    rows = {tensor.name: tensor.dims[-1] for tensor in facts.tensors if len(tensor.dims) == 2}
    return rows.get("output.weight", rows.get("token_embd.weight", 0))


def _expert_ffn(facts: ModelFacts) -> int:
    """Length of one expert's inner layer."""
    stated = facts.integer("expert_feed_forward_length")
    down = (t.dims[0] for t in facts.tensors if t.name.endswith("ffn_down_exps.weight") and t.dims)
    return stated or max(down, default=0)


def _experts(facts: ModelFacts) -> int:
    """Floats for each token around the experts' product: outputs twice, or inputs three times."""
    embd, used = facts.integer("embedding_length"), facts.expert_used_count
    inner = used * _expert_ffn(facts)
    return max(2 * used * embd + inner + 3 * embd, 3 * inner + 5 * embd)


def _feed_forward(facts: ModelFacts) -> int:
    """Floats for each token in dense layers and shared experts."""
    inner = facts.integer("expert_shared_feed_forward_length")
    lengths = attention.per_layer(facts, "feed_forward_length")
    dense = [t for t in facts.tensors if t.name.endswith(".ffn_down.weight")]
    inner = max(inner, max(lengths, default=0) if dense else 0)
    return 3 * inner + 5 * facts.integer("embedding_length")


def _attention(facts: ModelFacts) -> int:
    """Floats for each token around attention."""
    embd = facts.integer("embedding_length")
    heads = max(attention.per_layer(facts, "attention.head_count"), default=0)
    key = facts.integer("attention.key_length", embd // max(1, heads))
    value = facts.integer("attention.value_length", key)
    if attention.is_compressed(facts):
        compressors = 4 * (key + facts.integer("attention.indexer.key_length"))
        hyper = 2 * facts.integer("hyper_connection.count", 1) * embd
        return 4 * heads * key + compressors + hyper
    if kda := facts.integer("kda.head_dim"):
        return 3 * embd + max(2 * heads * key, 16 * heads * kda)
    if facts.integer("attention.key_length_mla"):
        return 3 * embd + heads * (2 * key + value)
    inner = facts.integer("ssm.inner_size")
    mixed = inner + 2 * facts.integer("ssm.group_count") * facts.integer("ssm.state_size")
    return 3 * embd + max(2 * heads * key, 3 * mixed + inner if inner else 0)


def _indexer(facts: ModelFacts) -> int:
    """Floats for each token around an indexer's queries: as projected, and turned."""
    queries = facts.integer("attention.indexer.head_count")
    queries *= facts.integer("attention.indexer.key_length")
    embd = facts.integer("embedding_length") * (3 + 2 * facts.integer("hyper_connection.count"))
    return 2 * queries + facts.integer("attention.q_lora_rank") + embd if queries else 0


def _per_cell(facts: ModelFacts, ctx: int) -> int:
    """Bytes for each token of a micro-batch that grow with the context: masks and scores."""
    size = MASK_BYTES * ctx
    if window := attention.window(facts):
        size += MASK_BYTES * min(ctx, window)
    if facts.architecture in attention.INDEXED:
        size += 6 * ctx
    if facts.architecture == "minimax-m3":
        size += 12 * ctx
    if facts.architecture in attention.WITHOUT_FLASH:
        heads = max(attention.per_layer(facts, "attention.head_count"), default=0)
        size += FLOAT * heads * ctx
    return size
