# frozen_string_literal: true

require_relative "document"

module Bench
  # The latency and memory of each model of the published run, in docs/reference/models.md between two markers.
  module ModelTable
    PAGE = File.join(Document::ROOT, "docs", "reference", "models.md")
    MARKERS = ["<!-- rake bench:plot writes latency and memory from here -->", "<!-- to here -->"].freeze
    HEAD = ["model", "latency", "throughput", "peak memory of the process", "load"].freeze
    MINILM = "`all-MiniLM-L6-v2`"
    # A row: the model, then the cases of each column with what stands before their values.
    ROWS = [
      ["#{MINILM}, f32", [["8 tokens", "latency_8"], ["64 tokens", "latency_64"], ["256 tokens", "latency_256"]],
       [["", "embed_f32"]], "memory_f32_peak", "start_load"],
      ["#{MINILM}, bf16", [], [["", "embed_bf16"]], "memory_bf16_peak", nil],
      ["#{MINILM}, int8", [], [["", "embed_int8"]], nil, nil],
      ["`ms-marco-MiniLM-L-12-v2`, f32", [["100 documents", "rerank"]], [], "memory_rerank_peak", nil],
      ["`bert-tiny-ner`, f32", [["100 texts", "ner"]], [], "memory_ner_peak", nil],
      ["T5 of the size of `flan-t5-small`, f32",
       [["100 titles", "write"], ["the same with 4 beams", "write_with_beams"]], [], nil, nil],
      *%w[Q4_0 Q4_1 Q4_K_M Q6_K Q8_0].map do |type|
        name = type.downcase
        ["`SmolLM2-135M-Instruct`, #{type}", [["first token", "#{name}_first_token"]],
         [["prefill", "#{name}_prefill"], ["decode", "#{name}_decode"]], "memory_#{name}_peak", "memory_#{name}_load"]
      end
    ].freeze

    module_function

    # @return [String] the page that was written
    def publish
      File.write(PAGE, Document.insert(File.read(PAGE), current, MARKERS))
      PAGE
    end

    # @return [String] what the page should have between its markers
    def current
      section(Results.read(Results::PUBLISHED))
    end

    # @param result [Hash] a run
    # @return [String] the table in Markdown
    def section(result)
      outcomes = result.fetch("cases").reject { |outcome| outcome["status"] == "FAILED" }.to_h do |outcome|
        [outcome.fetch("name"), outcome]
      end
      machine = result.fetch("machine")
      lines = [HEAD, HEAD.map { "---" }, *ROWS.map { |row| cells(outcomes, row) }]
      <<~MARKDOWN.chomp

        #{machine["processor"]}, #{result["threads"]} threads, #{Document.level(machine)}#{result["date"][0, 10]}:

        #{lines.map { |line| "| #{line.join(" | ")} |" }.join("\n")}

      MARKDOWN
    end

    def cells(outcomes, row)
      name, latency, throughput, memory, load = row
      [name, values(outcomes, latency), values(outcomes, throughput),
       *[memory, load].map { |one| one ? values(outcomes, [["", one]]) : "–" }]
    end

    def values(outcomes, pairs)
      found = pairs.filter_map do |label, name|
        outcome = outcomes[name]
        outcome && "#{label} #{Table.value(outcome, OURS)}".strip
      end
      found.empty? ? "–" : found.join(", ")
    end
  end
end
