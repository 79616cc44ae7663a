"""The operators of a transformer's layers on one GPU, for one micro-batch.

The layers follow Megatron-LM. Symbols: T tokens of a micro-batch on one GPU, h width, t GPUs of the tensor group, e
bytes of an element. The matrices of attention and feed-forward part are split over the tensor group. With sequence
parallelism the norms and residual sums are split by tokens, and an all-gather and a reduce-scatter replace each
all-reduce (arXiv:2205.05198, section 4.2.2).

    norm -> qkv -> [rotary] -> attention -> projection -> residual -> norm -> up -> activation -> down -> residual

A linear layer has three products: forward (T, k) x (k, n), gradient of the input (T, n) x (n, k), and gradient of the
weights (n, T) x (T, k). All other kernels only move bytes. In float8 two of them quantize the input and the gradient of
the output, which they read once and write twice, by rows and by columns, as Transformer Engine does for its products;
an input that a norm makes needs no kernel of its own. Float4 does the same with fewer bytes.
The weights are quantized once per step, the logits and the router stay in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipesched.profiles import FLOAT32_BYTES
from pipesched.profiles.costs import LINEAR_BYTES, LayerSharding
from pipesched.profiles.inside_stage.model_shape import LatentAttention, ModelShape
from pipesched.profiles.inside_stage.operators import Collective, CollectiveKind, GroupName, Operator, OperatorKind

_TOKEN_BYTES = 8
"""Bytes of the number of a token."""
_ROUTED_BYTES = 17
"""Bytes kept for a token and an expert: score and probability in float32, a flag, and two row numbers (Megatron-LM and
Transformer Engine, which multiply by the probabilities in the activation of the experts)."""


@dataclass(frozen=True, slots=True)
class OperatorPass:
    """One pass of a layer on one GPU.

    Attributes:
        operators: The kernels, in order.
        collectives: The exchanges with other GPUs of the stage.
    """

    operators: tuple[Operator, ...] = ()
    collectives: tuple[Collective, ...] = ()

    def __add__(self, other: OperatorPass) -> OperatorPass:
        return OperatorPass(self.operators + other.operators, self.collectives + other.collectives)


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """One layer on one micro-batch, on one GPU of the stage.

    Attributes:
        name: Kind of the layer: ``embedding``, ``block``, ``expert block``, ``prediction`` or ``head``.
        parameters: Parameters on this GPU whose copies are in the data and context groups.
        expert_parameters: Parameters on this GPU of its experts.
        forward: F.
        backward_input: I, with the kernels that recompute activations; empty for the embedding.
        backward_weight: W.
        input_bytes: Bytes of the input.
        output_bytes: Bytes of the output, as a message.
        saved_bytes: Bytes kept from F to the end of the backward, besides the input.
        working_bytes: Peak memory of the backward besides its inputs, the gradients of matrices included.
        matrix_gradient_bytes: Gradients of matrices in the number type of the products, or their placeholders.
        gathers: Exchanges that gather the weights for each pass, if the copies share them (ZeRO-3).
        sums: Exchanges that sum the gradients of these weights, and share them out.
    """

    name: str
    parameters: int
    expert_parameters: int
    forward: OperatorPass
    backward_input: OperatorPass
    backward_weight: OperatorPass
    input_bytes: int
    output_bytes: int
    saved_bytes: int
    working_bytes: int
    matrix_gradient_bytes: int
    gathers: tuple[Collective, ...] = ()
    sums: tuple[Collective, ...] = ()


@dataclass
class _Passes:
    """The passes of a layer while its kernels are added, forward and backward together."""

    element_bytes: int
    linear_bytes: float
    summed_bytes: int
    parameters: int = 0
    expert_parameters: int = 0
    forward: list[Operator] = field(default_factory=list)
    backward_input: list[Operator] = field(default_factory=list)
    backward_weight: list[Operator] = field(default_factory=list)
    exchanges: list[Collective] = field(default_factory=list)
    exchanges_back: list[Collective] = field(default_factory=list)
    widths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Columns of the products that are apart in a trainer and one product here, by its name."""

    def linear(
        self,
        name: str,
        rows: int,
        inputs: int,
        *widths: int,
        saved: int = 0,
        experts: int = 0,
        bias: bool = False,
        is_linear: bool = True,
    ) -> None:
        """Add a linear layer, or an equal linear layer for each of `experts` experts.

        Args:
            name: Name of the product.
            rows: Number of tokens.
            inputs: Input features of a token.
            widths: Output features of a token; several if a trainer may compute the products separately.
            saved: Elements kept for the backward.
            experts: Number of experts on the GPU, or 0.
            bias: Whether the layer has a bias.
            is_linear: Whether float8 training computes the product in float8.
        """
        self.widths[name] = widths
        outputs = sum(widths)
        e, count = self.element_bytes, max(1, experts)
        kind: OperatorKind = "group_matmul" if experts else "matmul"
        flops = 2 * count * rows * inputs * outputs
        arrived, left, weights = count * rows * inputs, count * rows * outputs, count * inputs * outputs
        read = self.linear_bytes if is_linear else e
        product = Operator(name, kind, flops, 0, 0, count, rows, outputs, inputs, is_linear)
        if read < e and not (self.forward and self.forward[-1].name.endswith("norm")):
            self.moved(f"{name} cast", (e + 2 * read) * arrived, 0)
        forward_bytes, input_bytes, weight_bytes = (
            round(read * (left_factor + right_factor)) + result
            for left_factor, right_factor, result in (
                (arrived, weights, e * left),
                (left, weights, e * arrived),
                (arrived, left, 2 * self.summed_bytes * weights),
            )
        )
        self.forward.append(replace(product, num_bytes=forward_bytes, saved_bytes=e * saved))
        self.backward_input.append(replace(product, num_bytes=input_bytes, columns=inputs, inner=outputs))
        if read < e:  # the passes backward are in reverse order
            self.moved(f"{name} cast", 0, (e + 2 * read) * left)
        self.backward_weight.append(
            replace(
                product,
                num_bytes=weight_bytes,
                rows=outputs,
                columns=inputs,
                inner=rows,
            )
        )
        added = weights + (count * outputs if bias else 0)
        if experts:
            self.expert_parameters += added
        else:
            self.parameters += added

    def moved(
        self, name: str, forward: float, backward: float, saved_bytes: int = 0, kind: OperatorKind = "memory"
    ) -> None:
        """Add a kernel that only moves bytes, `forward` and `backward` of them, and keeps `saved_bytes`."""
        if forward:
            self.forward.append(Operator(name, kind, 0, round(forward), saved_bytes))
        if backward:
            self.backward_input.append(Operator(name, kind, 0, round(backward)))

    def exchange(
        self,
        kind: CollectiveKind,
        back: CollectiveKind,
        num_bytes: int,
        group: GroupName,
        is_hidden: bool = False,
        copies: int = 1,
    ) -> None:
        """Add a collective, and the one of its gradient."""
        self.exchanges.append(Collective(kind, num_bytes, group, is_hidden, copies))
        self.exchanges_back.append(Collective(back, num_bytes, group, is_hidden, copies))


class LayerMaker:
    """Makes the layers of a transformer for a micro-batch on one GPU.

    Args:
        shape: The model.
        microbatch_size: Samples.
        sharding: The split of the layers over the GPUs of a stage.
    """

    def __init__(self, shape: ModelShape, microbatch_size: int, sharding: LayerSharding) -> None:
        self.shape, self.sharding, self.samples = shape, sharding, microbatch_size
        self.element_bytes = FLOAT32_BYTES if sharding.precision == "float32" else 2
        self.context = shape.sequence // sharding.context
        self.tokens = microbatch_size * self.context
        self.between_tokens = self.tokens // sharding.tensor if sharding.has_sequence else self.tokens
        self.between = self.between_tokens * shape.hidden  # numbers of an activation between the matrices
        self.message_bytes = self.element_bytes * self.between
        self.gathered_bytes = self.element_bytes * self.tokens * shape.hidden

    def _passes(self) -> _Passes:
        linear_bytes = LINEAR_BYTES.get(self.sharding.precision, self.element_bytes)
        return _Passes(self.element_bytes, linear_bytes, min(FLOAT32_BYTES, self.sharding.gradient_bytes))

    def embedding(self) -> TransformerLayer:
        """Return the embedding of tokens, and of positions where they are learned."""
        e, shape = self.element_bytes, self.shape
        passes = self._passes()
        passes.parameters = -(-shape.vocab // self.sharding.tensor) * shape.hidden
        passes.parameters += shape.sequence * shape.hidden if shape.has_positions else 0
        passes.parameters += shape.norm_parameters(shape.hidden) if shape.has_embedding_norm else 0
        passes.moved("lookup", 2 * e * self.tokens * shape.hidden, 0)
        if shape.has_positions:
            passes.moved("positions", 3 * e * self.between, 0)
        if shape.has_dropout:
            passes.moved("dropout", (2 * e + 1) * self.between, 0, saved_bytes=self.between)
        added = Operator("embedding gradient", "memory", 0, (e + 2 * passes.summed_bytes) * self.tokens * shape.hidden)
        passes.backward_weight.append(added)
        self._reduced(passes)
        layer = self._made("embedding", passes, _TOKEN_BYTES * self.tokens, self.message_bytes)
        # the embedding has no gradient of its input: its gathered gradient is the exchange of W
        return replace(
            layer,
            backward_input=OperatorPass(),
            backward_weight=layer.backward_weight + OperatorPass((), layer.backward_input.collectives),
        )

    def block(self, has_experts: bool = False) -> TransformerLayer:
        """Return a block: attention and feed-forward part, each after a norm and before a residual sum."""
        passes = self._passes()
        self._block(passes, has_experts)
        name = "expert block" if has_experts else "block"
        return self._made(name, passes, self.message_bytes, self.message_bytes)

    def prediction(self, has_experts: bool = False) -> TransformerLayer:
        """Return a block of multi-token prediction, with logits and loss of its own over the head's weights.

        The activation and the next token's embedding are normalized and concatenated. A matrix product then halves the
        width (DeepSeek-V3, arXiv:2412.19437, section 2.2).
        """
        passes, width = self._passes(), self.shape.hidden
        self._norm(passes, "embedding norm")
        self._norm(passes, "activation norm")
        self._gathered(passes)
        passes.linear("joined", self.tokens, 2 * width, width // self.sharding.tensor)
        self._block(passes, has_experts)
        parameters = passes.parameters
        self._logits(passes)
        passes.parameters = parameters + self.shape.norm_parameters(width)  # the head's weights
        return self._made("prediction", passes, self.message_bytes, self.message_bytes, extra=self._logits_bytes())

    def _block(self, passes: _Passes, has_experts: bool) -> None:
        if self.shape.latent is None:
            self._attention(passes)
        else:
            self._latent_attention(passes, self.shape.latent)
        if has_experts:
            self._expert_part(passes)
        else:
            self._dense_part(passes, self.shape.ffn)

    def head(self) -> TransformerLayer:
        """Return the last norm, the logits of the vocabulary, and their loss."""
        passes = self._passes()
        self._logits(passes)
        return self._made("head", passes, self.message_bytes, 0, extra=self._logits_bytes())

    def _logits(self, passes: _Passes) -> None:
        """Add the last norm, the logits and their loss."""
        e, shape = self.element_bytes, self.shape
        vocab = -(-shape.vocab // self.sharding.tensor)
        scores = self.tokens * vocab
        self._norm(passes, "last norm")
        self._gathered(passes)
        passes.linear("logits", self.tokens, shape.hidden, vocab, is_linear=False)
        if self.sharding.has_fused_loss:
            # one kernel reads the logits and writes their gradient in place
            passes.moved("loss", 2 * e * scores, e * scores, e * scores, "cross_entropy")
        else:
            # the logits are copied to float32, whose probabilities are kept; the gradient is float32, then e bytes
            saved = FLOAT32_BYTES * scores
            passes.moved(
                "loss", (e + 5 * FLOAT32_BYTES) * scores, (3 * FLOAT32_BYTES + e) * scores, saved, "cross_entropy"
            )

    def _logits_bytes(self) -> int:
        """Return the bytes of gradients in the backward of the logits: of the logits, and twice the gathered input."""
        scores = self.tokens * -(-self.shape.vocab // self.sharding.tensor)
        # Megatron-LM turns the kept probabilities into their gradient in place, PyTorch's own loss makes a new one
        gradient = self.element_bytes + (0 if self.sharding.has_fused_pointwise else FLOAT32_BYTES)
        own = 0 if self.sharding.has_fused_loss else gradient * scores
        return own + 2 * self.gathered_bytes

    def _attention(self, passes: _Passes) -> None:
        shape, e, t = self.shape, self.element_bytes, self.sharding.tensor
        size = shape.head_size
        heads, kv_heads = shape.heads // t, max(1, shape.kv_heads // t)
        queries, keys = heads * size, kv_heads * size
        self._norm(passes, "attention norm")
        self._gathered(passes)
        has_bias = shape.has_bias or shape.has_query_bias
        passes.linear("qkv", self.tokens, shape.hidden, queries, keys, keys, bias=has_bias)
        passes.parameters += 2 * shape.norm_parameters(size) if shape.has_head_norms else 0
        if not shape.has_positions:
            turned = e * self.tokens * (queries + keys)  # the values keep the whole result of the product
            passes.moved("rotary", 2 * turned, 2 * turned, turned)
        self._core(passes, heads, (queries, keys, keys), queries, size, size)
        passes.linear("projection", self.tokens, queries, shape.hidden)
        self._ended(passes, "attention residual")

    def _latent_attention(self, passes: _Passes, latent: LatentAttention) -> None:
        shape, e, t = self.shape, self.element_bytes, self.sharding.tensor
        heads, size = shape.heads // t, latent.nope_size + latent.rope_size
        rows = self.between_tokens  # the products down are not split over the tensor group
        self._norm(passes, "attention norm")
        if latent.query_rank is None:
            self._gathered(passes)
            passes.linear("query", self.tokens, shape.hidden, heads * size)
        else:
            passes.linear("query down", rows, shape.hidden, latent.query_rank, saved=rows * latent.query_rank)
            passes.moved("query norm", 2 * e * rows * latent.query_rank, 3 * e * rows * latent.query_rank)
            passes.linear("query up", self.tokens, latent.query_rank, heads * size, saved=rows * latent.query_rank)
        down = latent.key_value_rank + latent.rope_size
        passes.linear("key value down", rows, shape.hidden, down, saved=rows * down)
        passes.moved("key value norm", 2 * e * rows * down, 3 * e * rows * down)
        passes.parameters += sum(map(shape.norm_parameters, (latent.query_rank or 0, latent.key_value_rank)))
        up = heads * (latent.nope_size + latent.value_size)
        passes.linear("key value up", self.tokens, latent.key_value_rank, up, saved=rows * latent.key_value_rank)
        if t > 1 and self.sharding.has_sequence:
            ranks = e * self.tokens * (down + (latent.query_rank or 0))
            passes.exchange("all_gather", "reduce_scatter", ranks, "tensor")
        turned = 2 * e * self.tokens * heads * 2 * size
        passes.moved("rotary", turned, turned)
        values = heads * latent.value_size
        self._core(passes, heads, (heads * size, heads * size, values), values, size, latent.value_size)
        passes.linear("projection", self.tokens, values, shape.hidden)
        self._ended(passes, "attention residual")

    def _core(
        self, passes: _Passes, heads: int, kept: tuple[int, int, int], values: int, size: int, value_size: int
    ) -> None:
        """Add softmax(Q K') V. A token has `kept` numbers in queries, keys and values, and `values` in the result."""
        e, tokens, sequence = self.element_bytes, self.tokens, self.shape.sequence
        scores = self.samples * heads * self.context * sequence
        flops = scores * (size + value_size)  # two products of the causal half of the matrix
        inputs_bytes, output_bytes = e * tokens * sum(kept), e * tokens * values
        sums_bytes = FLOAT32_BYTES * tokens * heads
        recomputes = self.sharding.recompute == "selective"
        if self.sharding.context > 1:  # keys and values of the other tokens arrive beside the attention to one's own
            gathered_bytes = e * tokens * sum(kept[1:]) * self.sharding.context
            passes.exchange("all_gather", "reduce_scatter", gathered_bytes, "context", is_hidden=True)
        if self.sharding.attention != "unfused":
            core = Operator(
                "attention",
                "attention",
                flops,
                inputs_bytes + output_bytes + sums_bytes,
                inputs_bytes + output_bytes + sums_bytes,
                self.samples,
                self.context,
                heads,
                size,
            )
            passes.forward.append(core)
            back = replace(core, kind="attention_backward", flops=5 * flops // 2, num_bytes=2 * core.num_bytes)
            passes.backward_input.append(replace(back, saved_bytes=0))
            return
        products = [
            Operator(name, "matmul", 2 * scores * width, e * (scores + tokens * heads * (width + width)), 0,
                     self.samples * heads, self.context, columns, inner)
            for name, width, columns, inner in (
                ("scores", size, sequence, size),
                ("values", value_size, value_size, sequence),
            )
        ]  # fmt: skip
        mask = scores if self.shape.has_dropout else 0
        softmax = Operator("softmax", "memory", 0, (4 if mask else 2) * e * scores + mask)
        again = (*products, softmax) if recomputes else ()
        matrices = 0 if recomputes else e * scores * (2 if mask else 1) + mask
        passes.forward.extend(
            (products[0], softmax, replace(products[1], saved_bytes=matrices + inputs_bytes + output_bytes))
        )
        passes.backward_input.extend(
            (*again, *products, *products, Operator("softmax", "memory", 0, (5 if mask else 3) * e * scores + mask))
        )

    def _dense_part(self, passes: _Passes, ffn: int) -> None:
        inner = ffn // self.sharding.tensor
        self._norm(passes, "feed-forward norm")
        self._gathered(passes)
        self._feed_forward(passes, self.tokens, inner, "")
        self._ended(passes, "feed-forward residual")

    def _feed_forward(self, passes: _Passes, rows: int, inner: int, prefix: str, experts: int = 0) -> None:
        """Add the up-projection, the activation and the down-projection, on `rows` tokens of each expert."""
        shape, e = self.shape, self.element_bytes
        widened = 2 * inner if shape.is_gated else inner
        count = max(1, experts)
        passes.linear(
            prefix + "up",
            rows,
            shape.hidden,
            *((inner, inner) if shape.is_gated else (inner,)),
            saved=count * rows * widened,
            experts=experts,
            bias=shape.has_bias,
        )
        numbers = count * rows * inner
        # numbers read and written, forward and backward; apart, the gate's activation is a kernel that keeps its result
        is_apart = shape.is_gated and not self.sharding.has_fused_pointwise
        ends = (5, 13) if is_apart else (3, 5) if shape.is_gated else (2, 3)
        saved_bytes = (2 if is_apart else 1) * e * numbers
        passes.moved(prefix + "activation", ends[0] * e * numbers, ends[1] * e * numbers, saved_bytes)
        passes.linear(prefix + "down", rows, inner, shape.hidden, experts=experts)

    def _expert_part(self, passes: _Passes) -> None:
        experts, shape, sharding, e = self.shape.experts, self.shape, self.sharding, self.element_bytes
        assert experts is not None, "only a block with experts"
        tensor, expert_tensor = sharding.tensor, sharding.expert_tensor
        self._norm(passes, "feed-forward norm")
        own = self.tokens // tensor  # tokens that this GPU sends to experts
        passes.linear("router", own, shape.hidden, experts.count, bias=experts.has_router_bias, is_linear=False)
        kept = _ROUTED_BYTES * own * experts.count
        passes.moved("routing", kept, 2 * FLOAT32_BYTES * own * experts.count, kept)
        sent = own * experts.topk
        sent_bytes = e * sent * shape.hidden
        copies = experts.topk if sharding.merges_copies else 1
        local = experts.count // sharding.expert
        rows = -(-sent * expert_tensor // local)  # balanced: as many come from other GPUs as go there
        arrived_bytes = e * local * rows * shape.hidden
        passes.moved("permute", 2 * sent_bytes, 2 * sent_bytes, arrived_bytes, kind="permute")
        if sharding.expert > 1:
            passes.exchange("all_to_all", "all_to_all", sent_bytes, "expert", sharding.hides_experts, copies)
        if expert_tensor > 1:
            passes.exchange("all_gather", "reduce_scatter", sent_bytes * expert_tensor, "tensor")
        self._feed_forward(passes, rows, experts.ffn // expert_tensor, "expert ", local)
        if expert_tensor > 1:
            passes.exchange("reduce_scatter", "all_gather", sent_bytes * expert_tensor, "tensor")
        if sharding.expert > 1:
            passes.exchange("all_to_all", "all_to_all", sent_bytes, "expert", sharding.hides_experts, copies)
        passes.moved("unpermute", 2 * sent_bytes, 2 * sent_bytes, kind="permute")
        if experts.shared_ffn:
            self._gathered(passes)
            self._feed_forward(passes, self.tokens, experts.shared_ffn // tensor, "shared ")
            passes.parameters += shape.hidden if experts.has_shared_gate else 0
            self._reduced(passes)
        passes.moved("feed-forward residual", 3 * self.message_bytes, self.message_bytes)

    def _norm(self, passes: _Passes, name: str) -> None:
        """Add a norm of the activation between matrices; it keeps its output, and its input if not the layer's."""
        number = self.message_bytes
        saved = (2 if passes.forward else 1) * number + 2 * FLOAT32_BYTES * self.between_tokens
        passes.moved(name, 2 * number, 4 * number, saved)
        passes.parameters += self.shape.norm_parameters(self.shape.hidden)

    def _ended(self, passes: _Passes, name: str) -> None:
        """Add the sum over the tensor group, bias, dropout and the residual sum."""
        self._reduced(passes)
        if self.shape.has_bias:
            passes.parameters += self.shape.hidden
        number, mask = self.message_bytes, self.between if self.shape.has_dropout else 0
        passes.moved(name, 3 * number + mask, (2 * number if mask else 0) + mask + number, mask)

    def _gathered(self, passes: _Passes) -> None:
        """Add the exchange before products that are split by columns."""
        if self.sharding.tensor == 1:
            return
        if self.sharding.has_sequence:
            passes.exchange("all_gather", "reduce_scatter", self.gathered_bytes, "tensor", self.sharding.hides_tensor)
            if self.sharding.keeps_gathered:  # in place of the norm's result on this GPU
                kept = self.gathered_bytes - self.message_bytes
                passes.forward[-1] = replace(passes.forward[-1], saved_bytes=passes.forward[-1].saved_bytes + kept)
            else:  # gathered again for the gradient of the weights, beside the gradient of the input
                passes.exchanges_back.append(Collective("all_gather", self.gathered_bytes, "tensor", is_hidden=True))
        else:
            passes.exchanges_back.append(
                Collective("all_reduce", self.gathered_bytes, "tensor", self.sharding.hides_tensor)
            )

    def _reduced(self, passes: _Passes) -> None:
        """Add the exchange behind products that are split by rows."""
        if self.sharding.tensor == 1:
            return
        hidden = self.sharding.hides_tensor
        if self.sharding.has_sequence:
            passes.exchange("reduce_scatter", "all_gather", self.gathered_bytes, "tensor", hidden)
        else:
            passes.exchanges.append(Collective("all_reduce", self.gathered_bytes, "tensor", hidden))

    def _made(
        self, name: str, passes: _Passes, input_bytes: int, output_bytes: int, extra: int = 0
    ) -> TransformerLayer:
        """Return the layer of the passes; `extra` are further bytes of its backward."""
        forward = OperatorPass(tuple(passes.forward), tuple(passes.exchanges))
        backward = OperatorPass(tuple(reversed(passes.backward_input)), tuple(reversed(passes.exchanges_back)))
        saved = sum(operator.saved_bytes for operator in passes.forward)
        gathers: tuple[Collective, ...] = ()
        sums: tuple[Collective, ...] = ()
        working, recomputes = self._working_bytes(passes) + extra, name in ("block", "expert block")
        if recomputes and self.sharding.recompute == "full":
            backward, saved, working = forward + backward, 0, working + saved
        if recomputes and self.sharding.recompute == "alternate":
            again, kept = self._alternate(passes)
            backward, saved, working = again + backward, kept, working + saved - kept
        weight = OperatorPass(tuple(reversed(passes.backward_weight)))
        if self.sharding.zero == 3:
            gathers = self._of_weights("all_gather", self.element_bytes, passes)
            sums = self._of_weights("reduce_scatter", passes.summed_bytes, passes)
        return TransformerLayer(
            name,
            passes.parameters,
            passes.expert_parameters,
            forward,
            backward,
            weight,
            input_bytes,
            output_bytes,
            saved,
            working,
            self._matrix_gradient_bytes(passes),
            gathers,
            sums,
        )

    def _alternate(self, passes: _Passes) -> tuple[OperatorPass, int]:
        """Return the operators that run again if every second product keeps its result, and the kept bytes."""
        again: list[Operator] = []
        kept = count = 0
        for operator in passes.forward:
            if operator.kind == "attention":
                result = self.element_bytes * operator.batch * operator.rows * operator.columns * operator.inner
                kept += result + FLOAT32_BYTES * operator.batch * operator.rows * operator.columns
            elif operator.kind != "matmul" or operator.name not in passes.widths:
                again.append(operator)
            else:
                for width in passes.widths[operator.name]:
                    count += 1
                    if count % 2:
                        kept += self.element_bytes * operator.rows * width
                    else:
                        share = width / operator.columns
                        flops, num_bytes = round(share * operator.flops), round(share * operator.num_bytes)
                        again.append(replace(operator, flops=flops, num_bytes=num_bytes, columns=width))
        gathers = tuple(exchange for exchange in passes.exchanges if exchange.kind == "all_gather")
        return OperatorPass(tuple(again), gathers), kept

    @staticmethod
    def _of_weights(kind: CollectiveKind, parameter_bytes: int, passes: _Passes) -> tuple[Collective, ...]:
        """Return the exchanges of the layer's weights, or of their gradients, over the copies of the layer."""
        groups: tuple[tuple[GroupName, int], ...] = (
            ("data", passes.parameters),
            ("expert_data", passes.expert_parameters),
        )
        return tuple(Collective(kind, parameter_bytes * count, group) for group, count in groups if count)

    def _working_bytes(self, passes: _Passes) -> int:
        """Return the bytes of gradients inside the layer: of its widest activation, of its output, and of matrices."""
        widest = max(
            (op.saved_bytes for op in passes.forward if op.kind == "memory" and op.name.endswith("activation")),
            default=0,
        )
        arrived = max((op.saved_bytes for op in passes.forward if op.name == "permute"), default=0)
        return widest + max(self.gathered_bytes, arrived) + self._matrix_gradient_bytes(passes)

    def _matrix_gradient_bytes(self, passes: _Passes) -> int:
        """Return the bytes of the gradients of matrices, or of their placeholders, while the layer's backward runs."""
        products = [op for op in passes.backward_weight if op.inner]
        if self.sharding.has_fused_gradients:  # equal matrices, as those of all experts, share their placeholder
            return sum(self.element_bytes * rows * columns for rows, columns in {(p.rows, p.columns) for p in products})
        return max((self.element_bytes * p.batch * p.rows * p.columns for p in products), default=0)
