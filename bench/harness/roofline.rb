# frozen_string_literal: true

require_relative "labels"
require_relative "standing"
require_relative "svg"
require_relative "table"

module Bench
  # Cases and limits in one picture, both scales logarithmic: to the right how
  # many operations a case does for a byte that it reads, upwards how many a
  # second. The memory's rate is a slope, each kind of arithmetic a roof, and a
  # case can lie under both only.
  class Roofline
    WIDTH = 980
    HEIGHT = 650
    AREA = Labels::Box.new(64, 112, 760, 580)
    # Labels of points may lie beyond its right edge.
    ROOMY = Labels::Box.new(AREA.left + 4, AREA.top, WIDTH - 8, AREA.bottom)
    # Of a power of ten.
    ROOM = 0.25
    # The least distance of two labels of roofs.
    ROW = 15
    STYLE = <<~CSS
      .label { font-size: 12px; }
      .leader { stroke: #818b98; stroke-width: 0.7; }
      .slope { stroke: #1f2328; stroke-width: 2; }
      .other { stroke: #59636e; stroke-width: 1.2; stroke-dasharray: 5 4; }
      .roof { stroke: #59636e; stroke-width: 1.5; }
      .case0 { fill: #0f6cbd; }
      .case1 { fill: #c4622d; }
      .case2 { fill: #1a7f5a; }
      .case3 { fill: #8250df; }
      .case4 { fill: #b3207a; }
      @media (prefers-color-scheme: dark) {
        .leader { stroke: #768390; }
        .slope { stroke: #e6edf3; }
        .other { stroke: #9198a1; }
        .roof { stroke: #9198a1; }
        .case0 { fill: #58a6ff; }
        .case1 { fill: #e8894f; }
        .case2 { fill: #3fb68b; }
        .case3 { fill: #b794f6; }
        .case4 { fill: #f078b8; }
      }
    CSS
    UNITS = { 12 => "T", 9 => "G", 6 => "M", 0 => "" }.freeze

    # @param standing [Standing]
    def initialize(standing)
      raise ArgumentError, "there is no case to draw" if standing.points.empty?

      @standing = standing
      @across = decades(standing.points.map(&:intensity) + standing.roofs.map { |roof| ridge(roof) })
      @upwards = decades(standing.points.map(&:rate) + standing.roofs.map { |roof| roof[:rate] })
    end

    # @return [String] the picture
    def svg
      Svg.picture([WIDTH, HEIGHT], @standing.title, STYLE, [head, grid, slopes, roofs, cases, foot])
    end

    # @return [Array(Float, Float)] where a case lies
    def place(intensity, rate)
      [scale(intensity, @across, AREA.left, AREA.right), scale(rate, @upwards, AREA.bottom, AREA.top)]
    end

    private

    # Powers of ten, with room beside the outermost values.
    def decades(values)
      [Math.log10(values.min) - ROOM, Math.log10(values.max) + ROOM]
    end

    def whole(decades)
      (decades[0].ceil..decades[1].floor)
    end

    def scale(value, decades, from, to)
      low, high = decades
      (from + ((to - from) * (Math.log10(value) - low) / (high - low).to_f)).round(1)
    end

    # Where the memory gives just enough for a roof.
    def ridge(roof)
      roof[:rate] / @standing.bandwidth
    end

    def head
      dots = @standing.groups.values.each_with_index.map do |heading, index|
        [heading, ->(left) { Svg.circle([left + 14, 50], 5, "case#{index}") }]
      end
      lines = @standing.slopes.each_with_index.map do |slope, index|
        [slope[:label], ->(left) { Svg.line([left, 70], [left + 22, 70], slope_kind(index)) }]
      end
      [Svg.text(12, 26, @standing.title, "title"), keys(dots, 54), keys(lines, 74)]
    end

    # What signs mean, in a row.
    def keys(entries, baseline)
      left = AREA.left
      entries.map do |meaning, sign|
        drawn = [sign.call(left), Svg.text(left + 28, baseline, meaning, "label")]
        left += 50 + (meaning.length * Labels::LETTER).round
        drawn
      end
    end

    def slope_kind(index)
      index.zero? ? "slope" : "other"
    end

    def grid
      [whole(@across).map do |power|
        x, = place(10.0**power, 10.0**@upwards[0])
        [Svg.line([x, AREA.top], [x, AREA.bottom], "grid"),
         Svg.text(x, AREA.bottom + 16, plain(power), "note", anchor: "middle")]
      end,
       whole(@upwards).map do |power|
         _, y = place(10.0**@across[0], 10.0**power)
         [Svg.line([AREA.left, y], [AREA.right, y], "grid"),
          Svg.text(AREA.left - 8, y + 4, short(power), "note", anchor: "end")]
       end]
    end

    def plain(power)
      power.negative? ? (10.0**power).to_s : (10**power).to_s.gsub(/(?<=\d)(?=(\d{3})+\z)/, ",")
    end

    def short(power)
      exponent, unit = UNITS.find { |one, _| power >= one }
      "#{10**(power - exponent)} #{unit}".strip
    end

    def slopes
      slope_lines.each_with_index.map { |(from, to), index| Svg.line(from, to, slope_kind(index)) }
    end

    # From the left or lower edge to the highest roof.
    def slope_lines
      top = @standing.roofs.map { |roof| roof[:rate] }.max
      @standing.slopes.map do |slope|
        start = [10**@across[0], 10**@upwards[0] / slope[:rate]].max
        [place(start, start * slope[:rate]), place(top / slope[:rate], top)]
      end
    end

    def roofs
      roof_names.map do |roof, middle|
        from, to = roof_line(roof)
        [Svg.line(from, to, "roof"), Svg.line(to, [to[0] + 12, middle], "leader"),
         Svg.text(to[0] + 16, middle + 4, roof[:label], "label")]
      end
    end

    # Names stand to the right of their roofs, apart from each other.
    #
    # @return [Hash{Hash => Float}] heights by roof
    def roof_names
      middle = AREA.top - ROW
      @standing.roofs.sort_by { |roof| -roof[:rate] }.to_h do |roof|
        [roof, middle = [roof_line(roof).last[1], middle + ROW].max]
      end
    end

    def roof_line(roof)
      left, top = place(ridge(roof), roof[:rate])
      [[left, top], [AREA.right, top]]
    end

    def cases
      points = @standing.points.map { |point| place(point.intensity, point.rate) }
      texts = @standing.points.map(&:label)
      lines = slope_lines + @standing.roofs.map { |roof| roof_line(roof) }
      boxes = roof_names.map { |roof, middle| Labels.box(AREA.right, middle, "  #{roof[:label]}") }
      names = Labels.new(ROOMY, lines, boxes).places(points, texts).zip(points, texts).map { |parts| name(*parts) }
      [names, @standing.points.zip(points).map { |point, place| dot(point, place) }]
    end

    def name(place, point, text)
      [*(Svg.line(point, place.leader, "leader") if place.leader),
       Svg.text(place.left, place.baseline, text, "label", anchor: place.anchor)]
    end

    def dot(point, place)
      Svg.circle(place, 4, "case#{@standing.groups.keys.index(point.group)}")
    end

    def foot
      [Svg.text(AREA.left, AREA.bottom + 36, "operations for every byte of weights and cache that is read", "label"),
       Svg.text(12, AREA.top - 12, "operations per second", "label"),
       Svg.text(AREA.left, AREA.bottom + 56, "#{@standing.note} Logarithmic scales.", "note")]
    end
  end
end
