# frozen_string_literal: true

require_relative "case"

module Bench
  # Outcomes as rows of text, for the terminal and for Markdown.
  module Table
    HEAD = ["case", "ours", "best peer", "ratio", "target", "result", "other peers"].freeze

    module_function

    # @param outcomes [Array<Hash>]
    # @return [Array<Array<String>>] one row each, without the head
    def rows(outcomes)
      outcomes.map { |outcome| outcome["status"] == "FAILED" ? failed(outcome) : row(outcome) }
    end

    # @return [String] with columns as wide as they need to be
    def text(outcomes)
      lines = [HEAD, *rows(outcomes)]
      widths = lines.transpose.map { |column| column.map(&:length).max }
      lines.map { |cells| cells.zip(widths).map { |cell, width| cell.ljust(width) }.join("  ").rstrip }.join("\n")
    end

    # @return [String]
    def markdown(outcomes)
      lines = [HEAD, HEAD.map { "---" }, *rows(outcomes)]
      lines.map { |cells| "| #{cells.map { |cell| cell.gsub("|", "\\|") }.join(" | ")} |" }.join("\n")
    end

    def row(outcome)
      best = outcome["best_peer"]
      others = outcome["ratios"].reject { |peer, _| peer == best }
      [outcome["title"], value(outcome, OURS), best ? "#{best} #{value(outcome, best)}" : "",
       ratio(outcome["ratio"]), outcome["target_text"], result(outcome),
       others.map { |peer, times| "#{peer} #{ratio(times)}" }.join(", ")]
    end

    def failed(outcome)
      [outcome["title"], "", "", "", outcome["target_text"], "FAILED", outcome["error"].lines.first.strip[0, 80]]
    end

    def result(outcome)
      wrong = outcome["comparisons"].find { |comparison| !comparison["equal"] }
      return outcome["status"] unless wrong

      found = wrong["value"].is_a?(Float) ? format("%.5g", wrong["value"]) : wrong["value"]
      "#{outcome["status"]}: #{wrong["measure"]} #{found}, limit #{wrong["limit"]} (#{wrong["with"]})"
    end

    def value(outcome, participant)
      "#{number(outcome["values"][participant]["median"])} #{outcome["unit"]}"
    end

    def ratio(times)
      times ? "#{number(times)} ×" : ""
    end

    # Three digits that mean something, thousands set apart.
    def number(value)
      return "0" if value.zero?

      digits = (2 - Math.log10(value.abs).floor).clamp(0, 4)
      whole, fraction = format("%.#{digits}f", value).split(".")
      [whole.reverse.scan(/\d{1,3}/).join(",").reverse, fraction].compact.join(".")
    end
  end
end
