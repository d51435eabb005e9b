# frozen_string_literal: true

require "tmpdir"
require_relative "case"
require_relative "gguf"
require_relative "limits"
require_relative "models"
require_relative "runner"
require_relative "table"
require_relative "texts"

module Bench
  # `rake bench:larger`: a language model of 1.5 billion weights at several levels, and how much of the memory's rate
  # decoding uses. llama.cpp takes part where it is installed; its level is that of its build.
  class Larger
    ID = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"
    FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    ROUNDS = 3

    # @param levels [Array<String>] names of instruction sets
    # @param threads [Integer]
    # @return [Boolean] whether nothing failed
    def self.run(levels, threads:)
      memory = Limits.measure(threads).fetch("reading").first.fetch("bytes_per_second")
      bytes = Gguf.bytes_per_token(path)
      Dir.mktmpdir("bench-") do |directory|
        larger = new(levels, Texts.write(directory, texts: 1, documents: 1))
        outcomes = Runner.new(threads: threads).run(larger.cases)
        puts "", Table.markdown(outcomes), "", *shares(outcomes.last, bytes, memory)
        outcomes.none? { |outcome| Outcome.wrong?(outcome) }
      end
    end

    # @return [String] the file, fetched on first use
    def self.path
      File.join(Models.checkpoint(ID), FILE)
    end

    # @return [Array<String>] how much of what the memory gives decoding reads, by participant
    def self.shares(outcome, bytes, memory)
      outcome["values"].map do |name, value|
        rate = value["median"] * bytes
        format("%<name>s: %<rate>.1f of %<memory>.1f GB/s, %<share>d %%",
               name: name, rate: rate / 1e9, memory: memory / 1e9, share: 100 * rate / memory)
      end
    end

    def initialize(levels, inputs)
      @levels = levels
      @inputs = inputs
    end

    # @return [Array<Case>]
    def cases
      [Case.new(name: "larger_prefill", title: "prefill of 256", unit: "tokens/s", amount: :tokens,
                input: @inputs[:story], **common("prefill")),
       Case.new(name: "larger_decode", title: "decode of 96", unit: "tokens/s", input: @inputs[:opening],
                **common("decode"))]
    end

    private

    def common(task)
      { group: "larger", rounds: ROUNDS, participants: participants(task) }
    end

    # The first is ours without a name of its own.
    def participants(task)
      model = { kind: "llm", path: -> { self.class.path }, dtype: nil }
      ours = @levels.each_with_index.map do |level, index|
        Participant.new(worker: OURS, task: task, model: model, environment: { "CANDLE_CPU_ISA" => level },
                        label: index.zero? ? OURS : "our #{level}", check: ({ measure: :agreement } unless index.zero?))
      end
      ours + (llama? ? [Participant.new(worker: "llama.cpp", task: task, model: model, check: any)] : [])
    end

    # Answers part where two tokens are nearly as likely.
    def any
      { measure: :agreement, at_least: 0.0 }
    end

    def llama?
      system(Peers.python, "-c", "import llama_cpp", out: File::NULL, err: File::NULL)
    end
  end
end
