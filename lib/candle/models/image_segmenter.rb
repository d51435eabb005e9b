# frozen_string_literal: true

Candle::Native.complete(:ImageSegmenter)
# Its native half makes them.
require "candle/media/image"

module Candle
  # What is where in images: a label for every pixel, by SegFormer; the same, things, or all parts, by Mask2Former; and
  # masks of what points and boxes show, by SAM and SAM 2.
  #
  # @example
  #   segmenter = Candle::ImageSegmenter.from_pretrained("spec/fixtures/tiny/segformer")
  #   found = segmenter.segment("spec/fixtures/images/photo.png")
  #   found.first.keys # => [:label, :score, :mask]
  #   found.first[:mask].size # => [88, 66]
  #
  # @example
  #   segmenter = Candle::ImageSegmenter.from_pretrained("spec/fixtures/tiny/mask2former")
  #   things = segmenter.segment("spec/fixtures/images/photo.png", kind: :instance, threshold: 0.1)
  #   things.first.keys # => [:label, :score, :mask]
  #
  # @example
  #   segmenter = Candle::ImageSegmenter.from_pretrained("spec/fixtures/tiny/sam")
  #   found = segmenter.segment("spec/fixtures/images/photo.png", points: [[40, 30], [5, 5, false]])
  #   found.map(&:keys) # => [[:prompt, :score, :mask], [:prompt, :score, :mask], [:prompt, :score, :mask]]
  class ImageSegmenter
    include Model
    extend ImageLoading

    # What {#segment} looks for.
    KINDS = %i[semantic instance panoptic].freeze

    # @param input [String, Pathname, IO, Image, Array] an image or several; with points and boxes, one
    # @param labels [Array<String>, nil] only parts with these labels; nil is all
    # @param points [Array<Array>, nil] `[x, y]` in pixels for each point on a thing, and `[x, y, false]` for points
    #   beside it; all show one thing. Of SAM
    # @param boxes [Array<Hash, Array>, nil] `{xmin:, ymin:, xmax:, ymax:}`, as {ObjectDetector#detect} returns them, or
    #   four numbers in this order; each shows a thing. Of SAM; with points, one box
    # @param multiple [Boolean] several masks for each thing, since a point may show a thing or a part of it; false is
    #   one. Of SAM
    # @param kind [Symbol, String] `:semantic` is a label for every pixel; `:instance` each thing by itself, whose masks
    #   may lie upon each other; `:panoptic` parts of which every pixel has one or none. The last two of Mask2Former
    # @param threshold [Float] things and parts whose score is not above it are left out. Of Mask2Former
    # @param merge [Array<String>, nil] `:panoptic`: labels whose parts are one, such as the sky. Of Mask2Former
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:, mask:}`, the largest part first: `score` is how much
    #   of the image it covers, and `mask` an {Image} of the same size, white where the label is. Of things and parts
    #   `score` is how sure the model is, best first. One list for an image, one per image for an Array. Of points and
    #   boxes `{prompt:, score:, mask:}`: the number of the thing, and the best mask of each first, by what the model
    #   thinks of it
    # @raise [InvalidInputError] for what isn't an image, naming its index
    # @raise [ArgumentError] for labels that the model does not have, for points, boxes and a kind that it does not
    #   take, and without those that it needs
    def segment(input, labels: nil, points: nil, boxes: nil, multiple: true, kind: :semantic, threshold: 0.5,
                merge: nil)
      images, single = Image.inputs(input)
      return prompted(images, single, points, boxes, multiple) if takes_prompts?

      plain = NilClass === points && NilClass === boxes
      raise ArgumentError, "this segmenter takes no points and boxes" unless plain

      wanted = Arguments.known_labels(labels, self.labels)
      lists = parts_of(images, kind_of(kind), threshold, merge).map { |parts| listed_parts(parts, wanted) }
      single ? lists.first : lists
    end

    # @return [Array<String>] in the order of the model's classes
    def labels
      looked_up(:labels) { _labels.freeze }
    end

    private

    def takes_prompts?
      looked_up(:takes_prompts) { _takes_prompts }
    end

    def finds_things?
      looked_up(:finds_things) { _finds_things }
    end

    def kind_of(kind)
      kind = Arguments.choice(kind, "kind", KINDS)
      return kind if kind == :semantic || finds_things?

      raise ArgumentError, "this segmenter labels pixels; kind: must be :semantic"
    end

    def parts_of(images, kind, threshold, merge)
      threshold = Arguments.fraction(threshold, "threshold")
      merged = Arguments.known_labels(merge, labels) || []
      raise ArgumentError, "merge: is for kind: :panoptic" unless merged.empty? || kind == :panoptic
      return _segment(images) if kind == :semantic

      _parts(images, kind == :panoptic, merged.map { |label| labels.index(label) }, threshold)
    end

    def listed_parts(parts, wanted)
      parts = parts.map { |label, score, mask| { label: labels.fetch(label), score: score, mask: mask } }
      parts = parts.select { |part| wanted.include?(part[:label]) } if wanted
      parts.sort_by.with_index { |part, index| [-part[:score], index] }
    end

    def prompted(images, single, points, boxes, multiple)
      raise ArgumentError, "points and boxes are of one image, not of an Array" unless single

      prompts = prompts_of(points, boxes)
      _segment_prompts(images, prompts, multiple ? true : false).each_with_index.flat_map do |masks, number|
        masks = masks.map { |score, mask| { prompt: number, score: score, mask: mask } }
        masks.sort_by.with_index { |one, index| [-one[:score], index] }
      end
    end

    def prompts_of(points, boxes)
      points = listed(points, "points").map { |point| point_of(point) }
      boxes = listed(boxes, "boxes").map { |box| corners_of(box) }
      none = points.empty? && boxes.empty?
      raise ArgumentError, "this segmenter needs points: or boxes:" if none
      raise ArgumentError, "points go with one box, not with #{boxes.size}" if points.any? && boxes.size > 1

      boxes.empty? ? [[points, nil]] : boxes.map { |corners| [points, corners] }
    end

    def listed(value, name)
      return [] if NilClass === value
      return value if Array === value

      raise ArgumentError, "#{name} must be an Array, not #{Arguments.shown(value)}"
    end

    def point_of(point)
      x, y, inside = point if Array === point && point.size.between?(2, 3)
      inside = true if NilClass === inside
      return [x.to_f, y.to_f, inside] if number?(x) && number?(y) && (TrueClass === inside || FalseClass === inside)

      raise ArgumentError, "a point must be [x, y] or [x, y, false], not #{Arguments.shown(point)}"
    end

    def corners_of(box)
      edges = Hash === box ? %i[xmin ymin xmax ymax].map { |edge| box[edge] || box[edge.to_s] } : box
      return edges.map(&:to_f) if Array === edges && edges.size == 4 && edges.all? { |edge| number?(edge) }

      raise ArgumentError, "a box must have xmin, ymin, xmax and ymax, not #{Arguments.shown(box)}"
    end

    def number?(value)
      (Integer === value && value.abs < 1_000_000_000) || (Float === value && value.finite?)
    end

    def smoke_test
      segment(Image::BLANK, points: takes_prompts? ? [[0, 0]] : nil)
    end
  end
end
