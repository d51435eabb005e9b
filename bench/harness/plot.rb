# frozen_string_literal: true

require "cgi"
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
    # Readable on white and on dark pages; the background is the page's.
    STYLE = <<~CSS
      text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
      .title { font-size: 16px; font-weight: 600; }
      .heading { font-weight: 600; }
      .note { font-size: 11px; fill: #59636e; }
      .grid { stroke: #d1d9e0; stroke-width: 1; }
      .one { stroke: #59636e; stroke-width: 1.5; }
      .target { stroke: #1f2328; stroke-width: 2; }
      .reached { fill: #1a7f5a; }
      .missed { fill: #c4622d; }
      .shown { fill: #6a7f99; }
      @media (prefers-color-scheme: dark) {
        text { fill: #e6edf3; }
        .note { fill: #9198a1; }
        .grid { stroke: #3d444d; }
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
      <<~SVG
        <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 #{WIDTH} #{height}" width="#{WIDTH}" height="#{height}" role="img" aria-labelledby="title">
        <title id="title">#{escape(title)}</title>
        <style>
        #{STYLE}</style>
        #{[head, grid, *bars, foot].flatten.join("\n")}
        </svg>
      SVG
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
      text(12, 26, title, "title")
    end

    def grid
      bottom = height - BOTTOM + 4
      (@low..@high).flat_map do |power|
        x = place(2.0**power)
        [line(x, TOP - 6, bottom, power.zero? ? "one" : "grid"),
         text(x, TOP - 12, "#{Table.number(2.0**power).sub(/\.?0+\z/, "")} ×", "note", anchor: "middle")]
      end
    end

    def bars
      y = TOP
      @groups.map do |group, outcomes|
        heading = text(12, y + 20, HEADINGS.fetch(group, group.capitalize), "heading")
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
      [text(LABELS - 10, top + 15, outcome["title"], nil, anchor: "end"),
       rectangle(from, top + 3, [to - from, 1].max.round(1), kind),
       *(line(place(mark), top + 1, top + ROW - 1, "target") if mark),
       text(LABELS + BARS + 12, top + 15, "#{Table.ratio(outcome["ratio"])} #{outcome["best_peer"]}", nil)]
    end

    def foot
      bottom = height - BOTTOM
      machine = @result["machine"]
      [text(12, bottom + 24, "To the right of 1 × ours is faster, or needs less memory; a mark is the target. " \
                             "Logarithmic scale.", "note"),
       text(12, bottom + 42, "#{machine["processor"]}, #{@result["date"][0, 10]}", "note"),
       text(12, bottom + 60, @result["versions"].map { |name, version| "#{name} #{version}" }.join(", "), "note")]
    end

    def text(left, top, content, kind, anchor: nil)
      attributes = [(%(class="#{kind}") if kind), (%(text-anchor="#{anchor}") if anchor)].compact
      "<text x=\"#{left}\" y=\"#{top}\" #{attributes.join(" ")}>#{escape(content)}</text>"
    end

    def rectangle(left, top, width, kind)
      %(<rect class="#{kind}" x="#{left}" y="#{top}" width="#{width}" height="#{ROW - 6}" rx="2"/>)
    end

    def line(left, top, bottom, kind)
      %(<line class="#{kind}" x1="#{left}" x2="#{left}" y1="#{top}" y2="#{bottom}"/>)
    end

    def escape(content)
      CGI.escapeHTML(content)
    end
  end
end
