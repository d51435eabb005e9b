# frozen_string_literal: true

require "tmpdir"
require_relative "case"
require_relative "hidden_cpuid"
require_relative "models"
require_relative "runner"
require_relative "suite"
require_relative "table"
require_relative "texts"

module Bench
  # `rake bench:levels`: embeddings in f32 with every library limited to one instruction set.
  class Levels
    # candle-transformers is built for the machine.
    LIBRARIES = (Suite::EMBEDDERS - [Suite::CANDLE]).freeze
    TARGET = Target.new(ratio: 1.3)
    LENGTHS = { short: 8, middle: 64, long: 256 }.freeze
    ROUNDS = 7

    # @param level [String] one of {HiddenCpuid::LEVELS}
    # @param threads [Integer]
    # @return [Boolean] whether all results agree
    def self.run(level, threads:)
      Dir.mktmpdir("bench-") do |directory|
        inputs = Texts.write(directory, texts: 400, documents: 100)
        outcomes = Runner.new(threads: threads).run(new(level, inputs).cases)
        puts "", "Level #{level}, #{threads} threads, #{Machine.processor}", "", Table.markdown(outcomes)
        outcomes.none? { |outcome| Outcome.wrong?(outcome) }
      end
    end

    # @param level [String]
    # @param inputs [Hash{Symbol => String}] files
    def initialize(level, inputs)
      @level = level
      @inputs = inputs
    end

    # @return [Array<Case>]
    def cases
      many = Case.new(name: "embed", group: "levels", title: "400 mixed texts", unit: "tokens/s", amount: :tokens,
                      input: @inputs[:mixed], rounds: ROUNDS, participants: participants, target: TARGET)
      [*LENGTHS.map { |input, tokens| one_text(input, tokens) }, many]
    end

    private

    def one_text(input, tokens)
      Case.new(name: "latency_#{tokens}", group: "levels", title: "one text of #{tokens} tokens", unit: "ms",
               input: @inputs[input], rounds: ROUNDS, repeat: 2560 / (tokens + 56), participants: participants,
               target: TARGET)
    end

    def participants
      ours = Participant.new(worker: OURS, task: "embed", model: model(-> { Models.checkpoint(Models::EMBEDDING) }),
                             environment: { "CANDLE_CPU_ISA" => @level })
      [ours, *LIBRARIES.map { |library| peer(library) }]
    end

    def peer(library)
      Participant.new(worker: library, task: "embed", model: model(-> { Models.embedding(library) }),
                      environment: HiddenCpuid.environment(@level),
                      check: { measure: :cosine, dimension: 384, at_least: 0.9999 })
    end

    def model(path)
      { kind: "embedding", path: path, dtype: "f32" }
    end
  end
end
