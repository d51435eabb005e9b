# frozen_string_literal: true

require_relative "svg"
require_relative "table"

module Bench
  # The ratios of a run as an SVG picture: one bar per case, from 1 × to the
  # right where ours is better, to the left where it is worse. The scale is
  # logarithmic, so that twice and half are equally long.
  class Plot
    WIDTH = 980
    LABELS = 300
    BARS = 440
    ROW = 22
    HEADING = 30
    TOP = 64
    BOTTOM = 74
    STYLE = <<~CSS
      .one { stroke: #59636e; stroke-width: 1.5; }
      .target { stroke: #1f2328; stroke-width: 2; }
      .reached { fill: #1a7f5a; }
      .missed { fill: #c4622d; }
      .shown { fill: #6a7f99; }
      @media (prefers-color-scheme: dark) {
        .one { stroke: #9198a1; }
        .target { stroke: #e6edf3; }
        .reached { fill: #3fb68b; }
        .missed { fill: #e8894f; }
        .shown { fill: #8fa3bd; }
      }
    CSS
    HEADINGS = { "ner" => "Named entities", "seq2seq" => "Titles", "llm" => "Generation",
                 "memory" => "Start and memory" }.freeze
    CLASSES = { "pass" => "reached", "miss" => "missed" }.freeze

    # @param result [Hash] a run as its file has it
    def initialize(result)
      @result = result
      @groups = result.fetch("cases").select { |outcome| outcome["ratio"] }.group_by { |outcome| outcome["group"] }
      raise ArgumentError, "no case of this run has a ratio to draw" if @groups.empty?

      @low, @high = bounds
    end

    # @return [String] the picture
    def svg
      Svg.picture([WIDTH, height], title, STYLE, [head, grid, *bars, foot])
    end

    private

    def title
      "red-candle beside its best peer, #{@result["threads"]} threads"
    end

    def height
      TOP + @groups.sum { |_, outcomes| HEADING + (outcomes.size * ROW) } + BOTTOM
    end

    # The powers of two around all ratios and targets.
    def bounds
      values = @groups.values.flatten.flat_map { |outcome| [outcome["ratio"], wanted(outcome)] }.compact
      [[Math.log2(values.min).floor, -1].min, [Math.log2(values.max).ceil, 1].max]
    end

    def wanted(outcome)
      outcome.dig("target", "ratio")
    end

    def place(ratio)
      (LABELS + (BARS * (Math.log2(ratio) - @low) / (@high - @low).to_f)).round(1)
    end

    def head
      Svg.text(12, 26, title, "title")
    end

    def grid
      bottom = height - BOTTOM + 4
      (@low..@high).flat_map do |power|
        x = place(2.0**power)
        [upright(x, TOP - 6, bottom, power.zero? ? "one" : "grid"),
         Svg.text(x, TOP - 12, "#{Table.number(2.0**power).sub(/\.?0+\z/, "")} ×", "note", anchor: "middle")]
      end
    end

    def bars
      y = TOP
      @groups.map do |group, outcomes|
        heading = Svg.text(12, y + 20, HEADINGS.fetch(group, group.capitalize), "heading")
        y += HEADING
        [heading, *outcomes.map { |outcome| bar(outcome, (y += ROW) - ROW) }]
      end
    end

    def bar(outcome, top)
      one = place(1.0)
      edge = place(outcome["ratio"])
      from, to = [one, edge].minmax
      kind = CLASSES.fetch(outcome["status"], "shown")
      mark = wanted(outcome)
      [Svg.text(LABELS - 10, top + 15, outcome["title"], anchor: "end"),
       Svg.rectangle(from, top + 3, [to - from, 1].max.round(1), ROW - 6, kind),
       *(upright(place(mark), top + 1, top + ROW - 1, "target") if mark),
       Svg.text(LABELS + BARS + 12, top + 15, "#{Table.ratio(outcome["ratio"])} #{outcome["best_peer"]}")]
    end

    def foot
      bottom = height - BOTTOM
      machine = @result["machine"]
      [Svg.text(12, bottom + 24, "To the right of 1 × ours is faster, or needs less memory; a mark is the target. " \
                             "Logarithmic scale.", "note"),
       Svg.text(12, bottom + 42, "#{machine["processor"]}, #{@result["date"][0, 10]}", "note"),
       Svg.text(12, bottom + 60, @result["versions"].map { |name, version| "#{name} #{version}" }.join(", "), "note")]
    end

    def upright(left, top, bottom, kind)
      Svg.line([left, top], [left, bottom], kind)
    end
  end
end
