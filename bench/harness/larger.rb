# frozen_string_literal: true

require "tmpdir"
require_relative "case"
require_relative "gguf"
require_relative "limits"
require_relative "models"
require_relative "runner"
require_relative "standing"
require_relative "table"
require_relative "texts"
require_relative "workload"

module Bench
  # `rake bench:larger`: a language model of 1.5 billion weights at several levels, how much of the memory's rate
  # decoding uses, of one sequence and of eight, and how much of the arithmetic a prompt uses. llama.cpp and
  # ik_llama.cpp take part where they are installed; their levels are those of their builds.
  class Larger
    ID = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"
    FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    ROUNDS = 3
    SHAPE = Workload::Decoder.new(layers: 28, hidden: 1536, inner: 8960, heads: 12, key_heads: 2, head_size: 128,
                                  vocabulary: 151_936)
    PROMPT = 256
    # Tokens that a step looks back on, on average, and bytes of a number in the cache.
    CONTEXT = 40
    WIDTH = 4
    # Shares that are wanted, by case, in per cent.
    WANTED = { "larger_prefill" => 30, "larger_decode" => 75, "larger_together" => 40 }.freeze

    # @param levels [Array<String>] names of instruction sets
    # @param threads [Integer]
    # @return [Boolean] whether nothing failed
    def self.run(levels, threads:)
      limits = Limits.measure(threads)
      bytes = Gguf.bytes_per_token(path)
      Dir.mktmpdir("bench-") do |directory|
        larger = new(levels, Texts.write(directory, texts: 1, documents: 1))
        outcomes = Runner.new(threads: threads).run(larger.cases)
        puts "", Table.markdown(outcomes), "", *outcomes.flat_map { |outcome| larger.shares(outcome, bytes, limits) }
        outcomes.none? { |outcome| Outcome.wrong?(outcome) }
      end
    end

    # @return [String] the file, fetched on first use
    def self.path
      File.join(Models.checkpoint(ID), FILE)
    end

    def initialize(levels, inputs)
      @levels = levels
      @inputs = inputs
    end

    # @return [Array<Case>]
    def cases
      [Case.new(name: "larger_prefill", title: "prefill of #{PROMPT}", unit: "tokens/s", amount: :tokens,
                input: @inputs[:story], **common("prefill")),
       Case.new(name: "larger_decode", title: "decode of 96", unit: "tokens/s", input: @inputs[:opening],
                **common("decode")),
       Case.new(name: "larger_together", title: "#{Texts::TOGETHER} sequences of 64 tokens, batched", unit: "tokens/s",
                amount: Texts::TOGETHER * 64, input: @inputs[:openings], **common("decode_together"))]
    end

    # @param outcome [Hash] of one of the cases
    # @param bytes [Integer] of the weights that a step reads
    # @param limits [Hash] as {Limits.measure} returns them
    # @return [Array<String>] how much of the memory's rate, or of the arithmetic, each participant uses
    def shares(outcome, bytes, limits)
      outcome["values"].map do |name, value|
        rate, limit, unit = use(outcome["name"], name, value["median"], bytes, limits)
        format("%<title>s, %<name>s: %<rate>.1f of %<limit>.1f %<unit>s, %<share>d %% (wanted: %<wanted>d %%)",
               title: outcome["title"], name: name, rate: rate / 1e9, limit: limit / 1e9, unit: unit,
               share: (100 * rate / limit).round, wanted: WANTED.fetch(outcome["name"]))
      end
    end

    private

    # @return [Array(Float, Float, String)] what is read or computed in a second, the most there is, the unit
    def use(test, participant, tokens_per_second, bytes, limits)
      if test == "larger_prefill"
        operations = tokens_per_second * SHAPE.prompt(PROMPT) / PROMPT
        return [operations, CpuStanding.new({}, limits).roof(arithmetic(participant)), "G operations/s"]
      end
      sequences = test == "larger_together" ? Texts::TOGETHER : 1
      read = bytes + (sequences * SHAPE.cache(CONTEXT, WIDTH))
      [tokens_per_second / sequences * read, limits.fetch("reading").first.fetch("bytes_per_second"), "GB/s"]
    end

    # Our blocks go through tiles at one level alone; llama.cpp is built without them. Vectors are the machine's widest.
    def arithmetic(participant)
      level = participant == OURS ? @levels.first : participant.delete_prefix("our ")
      level == "amx" ? :block_tiles : :block_vectors
    end

    def common(task)
      { group: "larger", rounds: ROUNDS, participants: participants(task) }
    end

    # The first is ours without a name of its own.
    def participants(task)
      model = { kind: "llm", path: -> { self.class.path }, dtype: nil }
      ours = @levels.each_with_index.map do |level, index|
        Participant.new(worker: OURS, task: task, model: model, environment: { "CANDLE_CPU_ISA" => level },
                        label: index.zero? ? OURS : "our #{level}", check: (alike(task) unless index.zero?))
      end
      ours + peers.map { |worker| Participant.new(worker: worker, task: task, model: model, check: any) }
    end

    # Sequences that run together part for good where levels round differently and two tokens are nearly as likely.
    def alike(task)
      task == "decode_together" ? any : { measure: :agreement }
    end

    # Answers part where two tokens are nearly as likely.
    def any
      { measure: :agreement, at_least: 0.0 }
    end

    def peers
      modules = { "llama.cpp" => "llama_cpp", "ik_llama.cpp" => "ik_llama_cpp" }
      modules.filter_map do |worker, name|
        worker if system(Peers.python, "-c", "import #{name}", out: File::NULL, err: File::NULL)
      end
    end
  end
end
