# frozen_string_literal: true

module Bench
  # Finds places for labels beside points, so that none lies on another, on a
  # point or on a line: the nearest place that is free, with a thin line back to
  # its point where that is not next to it.
  class Labels
    Box = Struct.new(:left, :top, :right, :bottom) do
      def meets?(other)
        left < other.right && other.left < right && top < other.bottom && other.top < bottom
      end

      def within?(other)
        left >= other.left && right <= other.right && top >= other.top && bottom <= other.bottom
      end
    end
    #   left, baseline, anchor  where the text begins, ends or has its middle
    #   leader                  where the line back to the point ends, if there is one
    #   box                     what the text covers
    #   distance                from the point
    Place = Struct.new(:left, :baseline, :anchor, :leader, :box, :distance, keyword_init: true)

    # The width of a letter at most, and the height of a line.
    LETTER = 7
    HEIGHT = 14
    DISTANCES = [9, 16, 26, 38, 52, 68, 86, 106, 128, 152, 180, 210].freeze
    DIRECTIONS = 24
    # Of a point, and a bit.
    RADIUS = 5
    # Where a text is tied to its line, from left of the point to right of it, and which part of it lies before.
    ANCHORS = [["end", 1], ["middle", 0.5], ["start", 0]].freeze
    # In which points take their turns: the labels of the first are the nearest, and in the way of the others.
    ORDERS = [->(point) { point[1] }, ->(point) { -point[1] }, ->(point) { point[0] }, ->(point) { -point[0] },
              ->(point) { point.sum }, ->(point) { -point.sum }, ->(point) { point[0] - point[1] },
              ->(point) { point[1] - point[0] }].freeze

    # @param area [Box] where labels may lie
    # @param lines [Array<Array>] ends of the lines that they may not lie on
    # @param boxes [Array<Box>] what else they may not lie on
    def initialize(area, lines, boxes = [])
      @area = area
      @given = boxes + lines.flat_map { |from, to| along(from, to) }
    end

    # @return [Box] what a text covers that begins there
    def self.box(left, middle, text)
      Box.new(left, middle - (HEIGHT / 2), left + (text.length * LETTER), middle + (HEIGHT / 2))
    end

    # @param points [Array<Array(Float, Float)>]
    # @param texts [Array<String>] one for each
    # @return [Array<Place>]
    # @raise [RuntimeError] where there is no room for all
    def places(points, texts)
      ORDERS.map { |order| in_order(points, texts, order) }.select(&:all?).min_by do |all|
        all.sum do |one|
          one.distance**2
        end
      end ||
        raise("there is no room for all labels")
    end

    private

    def in_order(points, texts, order)
      dots = points.map { |point| around(point, RADIUS) }
      taken = @given + dots
      solid = []
      found = points.zip(texts).sort_by { |point, _| order.call(point) }.map do |point, text|
        place = nearest(point, text, taken, solid + dots.reject { |dot| dot == around(point, RADIUS) })
        (taken << place.box) && (solid << place.box) if place
        taken.concat(along(point, place.leader)) if place&.leader
        [[point, text], place]
      end.to_h
      points.zip(texts).map { |key| found[key] }
    end

    def nearest(point, text, taken, solid)
      DISTANCES.each do |distance|
        DIRECTIONS.times do |turn|
          place = beside(point, text, distance, 2 * Math::PI * turn / DIRECTIONS)
          return place if place.box.within?(@area) && clear?(place.box, taken) && reaches?(place, point, solid)
        end
      end
      nil
    end

    def beside(point, text, distance, angle)
      across = Math.cos(angle)
      left = (point[0] + (distance * across)).round(1)
      top = (point[1] + (distance * Math.sin(angle))).round(1)
      middle = top + (Math.sin(angle) * HEIGHT / 2)
      anchor, part = ANCHORS[(across * 1.4).round + 1]
      Place.new(left: left, baseline: (middle + 4).round(1), anchor: anchor, distance: distance,
                leader: ([left, top] if distance > DISTANCES.first),
                box: self.class.box(left - (text.length * LETTER * part), middle, text))
    end

    # Whether its line runs over no other point and no label; where points overlap, its beginning does not count.
    def reaches?(place, point, solid)
      place.leader.nil? || along(point, place.leader).drop(RADIUS + 3).all? { |box| clear?(box, solid) }
    end

    def clear?(box, others)
      others.none? { |other| box.meets?(other) }
    end

    # Small boxes, a step apart.
    def along(from, to)
      steps = [(to[0] - from[0]).abs, (to[1] - from[1]).abs].max.ceil.clamp(1, nil)
      (0..steps).map { |step| around(from.zip(to).map { |one, other| one + ((other - one) * step / steps.to_f) }, 1) }
    end

    def around(point, radius)
      Box.new(point[0] - radius, point[1] - radius, point[0] + radius, point[1] + radius)
    end
  end
end
