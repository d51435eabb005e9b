# frozen_string_literal: true

require "fileutils"
require_relative "plot"
require_relative "results"
require_relative "table"

module Bench
  # Puts a run into the documentation: its file beside the harness, the picture
  # and the table between two markers.
  module Document
    ROOT = File.expand_path("../..", __dir__)
    PAGE = File.join(ROOT, "docs", "internals", "measurements.md")
    PICTURE = File.join(ROOT, "docs", "internals", "measurements.svg")
    UNPUBLISHED = "No run has been published yet."
    MARKERS = ["<!-- rake bench:plot writes from here -->", "<!-- to here -->"].freeze

    module_function

    # @param path [String] a run's file
    # @return [Array<String>] what was written
    def publish(path = Results.latest)
      result = Results.read(path)
      FileUtils.cp(path, Results::PUBLISHED) unless File.identical?(path, Results::PUBLISHED)
      File.write(PICTURE, Plot.new(result).svg)
      File.write(PAGE, insert(File.read(PAGE), section(result)))
      [Results::PUBLISHED, PICTURE, PAGE]
    end

    # @return [String] what the page should have between its markers
    def current
      File.exist?(Results::PUBLISHED) ? section(Results.read(Results::PUBLISHED)) : UNPUBLISHED
    end

    # @return [String] the page with the text between the markers replaced
    # @raise [RuntimeError] when the page has lost a marker
    def insert(page, text, markers = MARKERS)
      before, opening, rest = page.partition(markers.first)
      _, closing, after = rest.partition(markers.last)
      raise "the page needs the lines #{markers.join(" and ")}" if opening.empty? || closing.empty?

      "#{before}#{opening}\n#{text}\n#{closing}#{after}"
    end

    # @return [String] the run in Markdown
    def section(result)
      machine = result.fetch("machine")
      <<~MARKDOWN.chomp

        #{machine["processor"]}, #{result["threads"]} threads, #{level(machine)}#{machine["memory_gigabytes"]} GB, #{machine["system"]}, #{result["date"][0, 10]}. Versions: #{result["versions"].map { |name, version| "#{name} #{version}" }.join(", ")}.

        #{Table.markdown(result.fetch("cases"))}

        ![Ratios of red-candle to its best peer](measurements.svg)

        Results compared: #{comparisons(result.fetch("cases"))}
      MARKDOWN
    end

    def level(machine)
      machine.key?("level") ? "level `#{machine["level"]}`, " : ""
    end

    # The loosest agreement of every measure.
    def comparisons(outcomes)
      all = outcomes.flat_map { |outcome| outcome["comparisons"] }.select { |one| one["value"].is_a?(Numeric) }
      all.group_by { |one| [one["measure"], one["limit"]] }.map do |(measure, limit), list|
        falling = %w[difference].include?(measure) || measure.start_with?("log")
        worst = list.map { |one| one["value"] }.public_send(falling ? :max : :min)
        "#{measure} #{falling ? "at most" : "at least"} #{format("%.5g", worst)} (limit #{limit}, #{list.size} cases)"
      end.join("; ").concat(".")
    end
  end
end
