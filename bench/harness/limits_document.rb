# frozen_string_literal: true

require_relative "document"
require_relative "limits"
require_relative "roofline"

module Bench
  # Puts the limits and where cases stand against them into the documentation:
  # a picture for each device, and tables between two markers.
  module LimitsDocument
    CPU_PICTURE = File.join(Document::ROOT, "docs", "internals", "roofline_cpu.svg")
    GPU_PICTURE = File.join(Document::ROOT, "docs", "internals", "roofline_h200.svg")
    GPU_DATA = File.join(Results::DIRECTORY, "h200.json")
    MARKERS = ["<!-- rake bench:roofline writes from here -->", "<!-- to here -->"].freeze
    HEAD = ["case", "operations per byte", "operations/s", "bytes/s", "nearer limit", "reached"].freeze
    # What the program calls the kinds of arithmetic.
    KINDS = { "f32_vectors" => "f32 by vectors", "int8_vectors" => "int8 by vectors",
              "bf16_vectors" => "bf16 by vectors", "bf16_tiles" => "bf16 by tiles",
              "int8_tiles" => "int8 by tiles" }.freeze
    PREFIXES = { 1e12 => "T", 1e9 => "G", 1e6 => "M" }.freeze

    module_function

    # @return [Array<String>] what was written
    def publish
      File.write(CPU_PICTURE, Roofline.new(cpu).svg)
      File.write(GPU_PICTURE, Roofline.new(gpu).svg)
      File.write(Document::PAGE, Document.insert(File.read(Document::PAGE), section, MARKERS))
      [CPU_PICTURE, GPU_PICTURE, Document::PAGE]
    end

    # @return [Standing] that of the published run
    def cpu
      CpuStanding.new(Results.read(Results::PUBLISHED), limits).standing
    end

    # @return [Standing]
    def gpu
      GpuStanding.new(Results.read(GPU_DATA)).standing
    end

    def limits
      Results.read(Limits::PATH)
    end

    # @return [String] what the page should have between the markers
    def section
      <<~MARKDOWN.chomp

        Limits of #{limits.dig("machine", "processor")}, #{limits["threads"]} threads, level `#{limits["level"]}`, #{limits["date"][0, 10]}:

        #{limits_table}

        ![Cases against the limits of the CPU](roofline_cpu.svg)

        #{table(cpu)}

        #{summary(cpu)}

        #{decoding(cpu)}

        ![Cases against the limits of an H200](roofline_h200.svg)

        #{table(gpu)}

        #{summary(gpu)}
      MARKDOWN
    end

    def limits_table
      reading = limits["reading"].map do |one|
        ["reading #{one["mebibytes"]} MiB again and again", "#{amount(one["bytes_per_second"])}B/s"]
      end
      kinds = limits["operations_per_second"].map { |kind, rate| [KINDS.fetch(kind), "#{amount(rate)} operations/s"] }
      markdown([["", "reached at most"], *reading, *kinds])
    end

    # @return [String] every case of a device
    def table(standing)
      rows = standing.points.map do |point|
        ["#{standing.groups.fetch(point.group)}: #{point.label}", Table.number(point.intensity), amount(point.rate),
         "#{amount(point.bytes_per_second)}B", standing.reads_most?(point) ? "memory" : "arithmetic",
         percent(standing.share(point))]
      end
      markdown([HEAD, *rows])
    end

    # @return [String] what the nearer limit of each group is, and how much of it is reached
    def summary(standing)
      standing.groups.filter_map do |group, heading|
        points = standing.points.select { |point| point.group == group }
        parts = points.group_by { |point| standing.reads_most?(point) ? "the memory" : "the arithmetic" }
        unless points.empty?
          "- **#{heading}**: #{parts.map do |name, some|
                                 "#{spread(standing, some)} of what #{name} allows"
                               end.join(", ")}"
        end
      end.join("\n")
    end

    # @return [String] how much of the memory's rate each type of blocks uses
    def decoding(standing)
      shares = standing.points.select { |point| point.group == "decoding" }.map do |point|
        "#{point.label} #{percent(standing.bandwidth_share(point))} (#{amount(point.bytes_per_second)}B/s)"
      end
      "Of the #{amount(standing.bandwidth)}B/s that #{limits["threads"]} threads read from memory, decoding uses: " \
        "#{shares.join(", ")}."
    end

    def spread(standing, points)
      low, high = points.map { |point| percent(standing.share(point)) }.minmax_by(&:to_i)
      low == high ? low : "#{low.delete_suffix(" %")} to #{high}"
    end

    def percent(share)
      "#{(100 * share).round} %"
    end

    # Three digits and a letter for thousands.
    def amount(value)
      size, letter = PREFIXES.find { |one, _| value >= one } || [1, ""]
      "#{Table.number(value / size)} #{letter}"
    end

    def markdown(rows)
      [rows.first, rows.first.map { "---" }, *rows.drop(1)].map { |cells| "| #{cells.join(" | ")} |" }.join("\n")
    end
  end
end
