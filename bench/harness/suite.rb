# frozen_string_literal: true

require_relative "candle_transformers"
require_relative "case"
require_relative "models"
require_relative "texts"

module Bench
  # Every case, with the target it belongs to.
  class Suite
    # A name that fits no case and no group.
    class UnknownCase < ArgumentError; end

    ST = "sentence-transformers"
    ORT = "onnxruntime"
    LLAMA = "llama.cpp"
    IK = "ik_llama.cpp"
    CANDLE = CandleTransformers::NAME
    # Libraries that embed texts in f32.
    EMBEDDERS = [ST, ORT, "openvino", "ctranslate2", "fastembed", CANDLE].freeze
    DIMENSION = 384
    TYPES = %w[Q4_1 Q4_0 Q8_0 Q4_K_M Q6_K].freeze
    # How far llama.cpp, which rounds activations to bytes, may be from our log probabilities on average.
    ROUNDING = 0.15
    # What most machines with AVX-512 have.
    WITHOUT_AMX = { "CANDLE_CPU_ISA" => "avx512vnni" }.freeze
    # What we do to memory for the whole process, each part by itself.
    SETTINGS = { "our allocator alone" => { "CANDLE_HUGE_PAGES" => "0" },
                 "our huge pages alone" => { "CANDLE_ALLOCATOR" => "system" },
                 "neither" => { "CANDLE_HUGE_PAGES" => "0", "CANDLE_ALLOCATOR" => "system" } }.freeze

    # @param directory [String] where inputs are written
    # @param quick [Boolean] few texts, one round, one type of GGUF
    def initialize(directory, quick: false)
      @documents = quick ? 20 : 100
      @inputs = Texts.write(directory, texts: quick ? 40 : 400, documents: @documents)
      @quick = quick
    end

    # @return [Array<Case, FreshCase>]
    def cases
      languages = types.flat_map { |type| generation(type) }
      [*embeddings, *latency, *concurrency, reranking, ner, *writing, *languages, *hybrids, *together, *settings,
       *overhead, *processes]
    end

    # @param wanted [Array<String>] names of cases or groups; none is all
    # @return [Array<Case, FreshCase>]
    # @raise [UnknownCase] with the names there are
    def select(wanted)
      known = cases
      unknown = wanted.reject { |name| known.any? { |one| [one.name, one.group].include?(name) } }
      unless unknown.empty?
        groups = known.map(&:group).uniq
        names = known.map(&:name)
        raise UnknownCase, "no case #{unknown.join(", ")}: groups are #{groups.join(", ")}; cases #{names.join(", ")}"
      end

      wanted.empty? ? known : known.select { |one| wanted.include?(one.name) || wanted.include?(one.group) }
    end

    private

    def types
      @quick ? TYPES.first(1) : TYPES
    end

    def rounds(count)
      @quick ? 1 : count
    end

    def embeddings
      [embed("f32", "f32", EMBEDDERS.map { |worker| embedder(worker, "f32") }, Target.new(ratio: 2.0)),
       embed("bf16", "bf16", [embedder(ST, "bf16", at_least: 0.999)], Target.new(ratio: 2.5),
             references: [our_embedder("f32", label: "our f32", check: cosine(0.999))]),
       embed("int8", "int8", [embedder(ORT, "int8", at_least: 0.95)], nil,
             references: [our_embedder("f32", label: "our f32", check: cosine(0.99))]),
       shorter("embed_int8_beside_bf16", "embeddings int8", "int8", "bf16", Target.new(ratio: 1.3)), *without_amx]
    end

    def embed(name, dtype, peers, target, references: [])
      Case.new(name: "embed_#{name}", group: "embeddings", title: "embeddings #{dtype}, mixed lengths",
               unit: "tokens/s", amount: :tokens, input: @inputs[:mixed], rounds: rounds(5),
               participants: [our_embedder(dtype), *peers], references: references, target: target)
    end

    # Two of our own types beside each other.
    def shorter(name, title, dtype, other, target, **environment)
      beside = our_embedder(other, label: "our #{other}", check: cosine(0.99), **environment)
      Case.new(name: name, group: "embeddings", title: title, unit: "tokens/s", amount: :tokens,
               input: @inputs[:mixed], rounds: rounds(5), target: target,
               participants: [our_embedder(dtype, **environment), beside])
    end

    # What short numbers are worth on processors without tiles.
    def without_amx
      environment = Peers.cpu_flags.include?("amx_tile") ? WITHOUT_AMX : {}
      { "int8" => 2.0, "bf16" => 1.0 }.map do |dtype, ratio|
        shorter("embed_#{dtype}_without_amx", "embeddings #{dtype} without AMX", dtype, "f32", Target.new(ratio: ratio),
                environment: environment)
      end
    end

    def latency
      { short: 8, middle: 64, long: 256 }.map do |input, tokens|
        Case.new(name: "latency_#{tokens}", group: "latency", title: "one text of #{tokens} tokens, f32", unit: "ms",
                 input: @inputs[input], rounds: rounds(7), repeat: @quick ? 5 : 2560 / (tokens + 56),
                 participants: [our_embedder("f32"), *EMBEDDERS.map { |worker| embedder(worker, "f32") }],
                 target: Target.new(ratio: 1.5))
      end
    end

    # Callers that share the pool must not be in each other's way.
    def concurrency
      [in_threads("embed", "two threads, half of the texts each", "one call", @inputs[:mixed], 0.95,
                  unit: "tokens/s", amount: :tokens),
       in_threads("embed_singly", "two threads, texts of 64 tokens one by one", "one thread", @inputs[:calls], 0.9,
                  unit: "texts/s", amount: Texts::CALLS),
       *gathered]
    end

    # Single texts of many callers are computed together.
    def gathered
      { 8 => :queries, 64 => :calls }.map do |tokens, input|
        in_threads("embed_singly", "16 threads, texts of #{tokens} tokens one by one", "one thread", @inputs[input],
                   tokens == 8 ? 1.5 : 1.0, threads: 16, unit: "texts/s", amount: Texts::CALLS)
      end + tails
    end

    # The slowest calls of many callers, beside those of a lone one who comes as often.
    def tails
      { "" => "one call after the other", "_apart" => "half as often as one thread could" }.map do |pace, title|
        lone = our_embedder("f32", task: "embed_lone#{pace}", label: "our lone call", check: cosine(0.9999))
        Case.new(name: "embed_tail_of_16#{pace}", group: "concurrency", title: "p99 of 16 threads, 8 tokens, #{title}",
                 unit: "ms", input: @inputs[:queries], rounds: rounds(5), target: Target.new(ratio: 0.25),
                 participants: [our_embedder("f32", task: "embed_tail_of_16#{pace}"), lone])
      end
    end

    def in_threads(task, title, alone, input, ratio, threads: nil, **rest)
      other = our_embedder("f32", task: task, label: "our #{alone}", check: cosine(0.9999))
      together = "#{task}_in_#{"#{threads}_" if threads}threads"
      name = input == @inputs[:queries] ? "#{together}_short" : together
      Case.new(name: name, group: "concurrency", title: title, input: input, rounds: rounds(5),
               participants: [our_embedder("f32", task: together), other], target: Target.new(ratio: ratio), **rest)
    end

    def our_embedder(dtype, task: "embed", **rest)
      Participant.new(worker: OURS, task: task, model: checkpoint("embedding", Models::EMBEDDING, dtype), **rest)
    end

    def embedder(worker, dtype, at_least: 0.9999)
      model = model_for(worker, "embedding", Models::EMBEDDING, dtype)
      model = model.merge(path: -> { Models.embedding(worker) }) if dtype == "f32"
      Participant.new(worker: worker, task: "embed", check: cosine(at_least), model: model)
    end

    def cosine(at_least)
      { measure: :cosine, dimension: DIMENSION, at_least: at_least }
    end

    def checkpoint(kind, id, dtype)
      { kind: kind, path: -> { Models.checkpoint(id) }, dtype: dtype }
    end

    def model_for(worker, kind, id, dtype)
      return checkpoint(kind, id, dtype) unless worker == ORT

      { kind: kind, path: -> { Models.onnx(kind, id, dtype) }, dtype: dtype }
    end

    def reranking
      check = { measure: :scores, within: 5e-3 }
      Case.new(name: "rerank", group: "reranking", title: "reranking #{@documents} documents, f32", unit: "ms",
               input: @inputs[:rerank], rounds: rounds(3), target: Target.new(ratio: 1.3),
               participants: trio("reranker", Models::RERANKER, "rerank", [check, check], judged: [true, false]))
    end

    def ner
      checks = [{ measure: :entities, within: 5e-3 }, { measure: :agreement, ours: "tags", at_least: 0.999 }]
      Case.new(name: "ner", group: "ner", title: "named entities of #{@documents} texts, f32", unit: "ms",
               input: @inputs[:names], rounds: rounds(5), target: Target.new(ratio: 1.0),
               participants: trio("ner", Models::NER, "ner", checks, judged: [true, false]))
    end

    # An encoder-decoder, token by token and with beams.
    def writing
      { "write" => "titles of #{@documents} texts, T5 f32", "write_with_beams" => "the same with 4 beams" }
        .map do |task, title|
          ours, theirs = [OURS, ST].map do |worker|
            Participant.new(worker: worker, task: task, model: checkpoint("seq2seq", Models::SEQ2SEQ, "f32"),
                            check: ({ measure: :share, at_least: 0.95 } if worker == ST))
          end
          Case.new(name: task, group: "seq2seq", title: title, unit: "ms", input: @inputs[:names], rounds: rounds(3),
                   participants: [ours, theirs], target: Target.new(ratio: 1.0))
        end
    end

    # Ours, sentence-transformers and onnxruntime on one checkpoint.
    def trio(kind, id, task, checks = [nil, nil], judged: [true, true])
      peers = [ST, ORT].zip(checks, judged).map do |worker, check, counts|
        Participant.new(worker: worker, task: task, judged: counts, check: check,
                        model: model_for(worker, kind, id, "f32"))
      end
      [Participant.new(worker: OURS, task: task, model: checkpoint(kind, id, "f32")), *peers]
    end

    def generation(type)
      logprobs = { measure: :logprobs, ours: "logprobs", theirs: "logprobs", within: ROUNDING }
      # Two tokens, each off by that much.
      greedy = { measure: :greedy, ours: "likeliest", theirs: "likeliest", within: 2 * ROUNDING }
      same = { measure: :agreement }
      [generate(type, "prefill", "prefill of 256", logprobs, unit: "tokens/s", amount: :tokens, input: @inputs[:story],
                                                             target: Target.new(ratio: 2.0)),
       generate(type, "decode", "decode of 96", greedy, unit: "tokens/s", input: @inputs[:opening],
                                                        target: Target.new(ratio: 1.8)),
       generate(type, "first_token", "first token of a short prompt", same,
                unit: "ms", input: @inputs[:opening], repeat: 3)]
    end

    def generate(type, task, title, check, **rest)
      model = { kind: "llm", path: -> { Models.gguf(type) }, dtype: nil }
      # candle-transformers is the slowest by far: one type says it all.
      peers = [LLAMA, IK, *(CANDLE if type == Models::GIVEN_TYPE)]
      peers.map! { |worker| Participant.new(worker: worker, task: task, model: model, check: check) }
      Case.new(name: "#{type.downcase}_#{task}", group: "llm", title: "#{type} #{title}", rounds: rounds(5),
               participants: [Participant.new(worker: OURS, task: task, model: model), *peers], **rest)
    end

    # Layers that keep states, beside llama.cpp on the same file and beside attention with as many bytes of weights.
    def hybrids
      model = ->(kind) { { kind: "llm", path: -> { Models.seeded(kind) }, dtype: nil } }
      part = lambda do |worker, task, kind = "hybrid", **rest|
        Participant.new(worker: worker, task: task, model: model.call(kind), **rest)
      end
      logprobs = { measure: :logprobs, ours: "logprobs", theirs: "logprobs", within: ROUNDING }
      greedy = { measure: :greedy, ours: "likeliest", theirs: "likeliest", within: 2 * ROUNDING }
      # Two models say different things.
      any = { measure: :agreement, at_least: 0.0 }
      [Case.new(name: "hybrid_prefill", group: "hybrid", title: "Mamba-2 hybrid, Q8_0, prefill of 256",
                unit: "tokens/s", amount: :tokens, input: @inputs[:story], rounds: rounds(5),
                target: Target.new(ratio: 1.0),
                participants: [part.call(OURS, "prefill"), part.call(LLAMA, "prefill", check: logprobs)]),
       Case.new(name: "hybrid_decode", group: "hybrid", title: "Mamba-2 hybrid, Q8_0, decode of 96", unit: "tokens/s",
                input: @inputs[:opening], rounds: rounds(5), target: Target.new(ratio: 1.0),
                participants: [part.call(OURS, "decode"), part.call(LLAMA, "decode", check: greedy)]),
       Case.new(name: "hybrid_beside_attention", group: "hybrid", title: "decode of 96, as many bytes of attention",
                unit: "tokens/s", input: @inputs[:opening], rounds: rounds(5), target: Target.new(ratio: 0.85),
                participants: [part.call(OURS, "decode"),
                               part.call(OURS, "decode", "attention", label: "our attention model", check: any)])]
    end

    # Many texts on one language model.
    def together
      model = { kind: "llm", path: -> { Models.gguf(Models::GIVEN_TYPE) }, dtype: nil }
      amount = Texts::TOGETHER * 64
      part = ->(worker, task, **rest) { Participant.new(worker: worker, task: task, model: model, **rest) }
      same = { measure: :agreement }
      # Greedy answers part for good where two tokens are nearly as likely.
      alike = { measure: :agreement, at_least: 0.3 }
      [Case.new(name: "decode_together", group: "together", title: "#{Texts::TOGETHER} sequences of 64 tokens, batched",
                unit: "tokens/s", amount: amount, input: @inputs[:openings], rounds: rounds(5),
                participants: [part.call(OURS, "decode_together"), part.call(LLAMA, "decode_together", check: alike)],
                target: Target.new(ratio: 1.3)),
       Case.new(name: "decode_in_turn", group: "together", title: "8 sequences, compared with one",
                unit: "tokens/s", amount: amount, input: @inputs[:openings], rounds: rounds(3),
                participants: [part.call(OURS, "decode_together"),
                               part.call(OURS, "decode_in_turn", label: "our one thread", check: same)],
                target: Target.new(ratio: 3.0)),
       Case.new(name: "second_caller", group: "together", title: "first token with a cached prefix of 1,000 tokens",
                unit: "ms", input: @inputs[:system], rounds: rounds(3),
                participants: [part.call(OURS, "second_caller"),
                               part.call(OURS, "first_caller", label: "ours without the cache", check: same)],
                target: Target.new(ratio: 10.0)),
       sessions(part)]
    end

    # A beginning that all share is stored once.
    def sessions(part)
      title = "peak memory, 64 idle sessions with a common prefix"
      FreshCase.new(name: "memory_sessions", group: "together", input: @inputs[:sessions], rounds: 1,
                    participants: [part.call(OURS, "idle_sessions"),
                                   part.call(OURS, "idle_sessions_apart", label: "ours without a common prefix")],
                    metrics: [Metric.new(kind: :peak, title: title, target: Target.new(ratio: 2.0))])
    end

    def settings
      model = { kind: "llm", path: -> { Models.gguf(Models::GIVEN_TYPE) }, dtype: nil }
      embed = ->(rest) { our_embedder("f32", check: cosine(0.9999), **rest) }
      decode = lambda do |rest|
        Participant.new(worker: OURS, task: "decode", model: model, check: { measure: :agreement }, **rest)
      end
      [with_settings("short", "a text of 8 tokens", embed, :short, unit: "ms", repeat: @quick ? 5 : 40),
       with_settings("middle", "a text of 64 tokens", embed, :middle, unit: "ms", repeat: @quick ? 5 : 20),
       with_settings("mixed", "embeddings, mixed lengths", embed, :mixed, unit: "tokens/s", amount: :tokens),
       with_settings("decode", "Q4_1 decode of 96", decode, :opening, unit: "tokens/s")]
    end

    def with_settings(name, title, participant, input, **rest)
      others = SETTINGS.map { |label, environment| participant.call(label: label, environment: environment) }
      Case.new(name: "settings_#{name}", group: "settings", title: "memory settings: #{title}", input: @inputs[input],
               rounds: rounds(5), participants: [participant.call({}), *others], **rest)
    end

    def overhead
      model = { kind: "llm", path: -> { Models.gguf(Models::GIVEN_TYPE) }, dtype: nil }
      [share("overhead_embed", "Ruby's share of embeddings f32", @inputs[:mixed], our_embedder("f32")),
       share("overhead_packed", "the same, as: :packed", @inputs[:mixed], our_embedder("f32", task: "embed_packed")),
       share("overhead_short", "Ruby's share of a text of 8 tokens", @inputs[:short], our_embedder("f32"), repeat: 40),
       share("overhead_decode", "Ruby's share of decoding Q4_1", @inputs[:opening],
             Participant.new(worker: OURS, task: "generate", model: model))]
    end

    def share(name, title, input, participant, repeat: 1)
      Case.new(name: name, group: "overhead", title: title, unit: "%", input: input, rounds: rounds(3),
               repeat: repeat, participants: [participant])
    end

    def processes
      all = [start, peak("memory_f32", "embeddings f32", @inputs[:mixed], embedders),
             peak("memory_bf16", "embeddings bf16", @inputs[:mixed], pair("bf16")),
             peak("memory_rerank", "reranking", @inputs[:rerank], trio("reranker", Models::RERANKER, "rerank")),
             peak("memory_ner", "named entities", @inputs[:names], trio("ner", Models::NER, "ner")),
             *types.map { |type| llm_process(type) }]
      @quick ? all.values_at(0, 1, -1) : all
    end

    def start
      metrics = [Metric.new(kind: :import, title: "require \"candle\", or import", target: Target.new(limit: 150)),
                 Metric.new(kind: :load, title: "load MiniLM, warm", target: Target.new(limit: 150))]
      FreshCase.new(name: "start", group: "memory", input: @inputs[:short], rounds: rounds(5), metrics: metrics,
                    participants: embedders)
    end

    def embedders
      trio("embedding", Models::EMBEDDING, "embed")
    end

    def pair(dtype)
      [our_embedder(dtype), embedder(ST, dtype)]
    end

    def llm_process(type)
      model = { kind: "llm", path: -> { Models.gguf(type) }, dtype: nil }
      participants = [OURS, LLAMA].map { |worker| Participant.new(worker: worker, task: "decode", model: model) }
      peak("memory_#{type.downcase}", "#{type} generation", @inputs[:opening], participants,
           more: [Metric.new(kind: :load, title: "load #{type}")])
    end

    def peak(name, title, input, participants, more: [])
      metric = Metric.new(kind: :peak, title: "peak memory, #{title}", target: Target.new(ratio: 1.0))
      FreshCase.new(name: name, group: "memory", input: input, rounds: 1, participants: participants,
                    metrics: [*more, metric])
    end
  end
end
