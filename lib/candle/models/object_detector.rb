# frozen_string_literal: true

Candle::Native.complete(:ObjectDetector)

module Candle
  # Things in images and the boxes around them: DETR, Table Transformer, YOLOS, RT-DETR, RT-DETRv2, D-FINE and
  # PP-DocLayout (V2 to V4). OWL-ViT, OWLv2, Grounding DINO and MM Grounding DINO find things that a call names.
  #
  # @example
  #   detector = Candle::ObjectDetector.from_pretrained("spec/fixtures/tiny/yolos")
  #   found = detector.detect("spec/fixtures/images/photo.png", threshold: 0.2)
  #   found.first.keys # => [:label, :score, :box]
  #   found.first[:box].keys # => [:xmin, :ymin, :xmax, :ymax]
  #   Candle::Image.open("spec/fixtures/images/photo.png").draw_boxes(found).size # => [88, 66]
  class ObjectDetector
    include Model
    extend ImageLoading

    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @param labels [Array<String>, nil] only things with these labels; nil is all. Detectors without labels of their
    #   own (OWL-ViT, OWLv2, Grounding DINO) find what these name, and need them. Grounding DINO reads all of them as
    #   one text; what it finds has the label that its best token belongs to
    # @param threshold [Float] things whose score is not above it are left out
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:, box: {xmin:, ymin:, xmax:, ymax:}}`, best first, boxes
    #   in pixels of the image; they may reach beyond it. PP-DocLayout's are in the order in which the page is read. One
    #   list for an image, one per image for an Array
    # @raise [InvalidInputError] for what isn't an image, naming its index
    # @raise [ArgumentError] for labels that the model does not have, without the labels that it needs, and for a
    #   threshold outside of 0..1
    def detect(input, labels: nil, threshold: 0.5)
      images, single = Image.inputs(input)
      threshold = Arguments.fraction(threshold, "threshold")
      named = named_labels(labels)
      wanted = Arguments.known_labels(labels, self.labels) unless named
      lists = _detect(images, named || [], threshold).map do |things|
        things = things.map { |label, score, corners| thing((named || self.labels).fetch(label), score, corners) }
        wanted ? things.select { |thing| wanted.include?(thing[:label]) } : things
      end
      single ? lists.first : lists
    end

    # @return [Array<String>] in the order of the model's classes; none of those that find what a call names
    def labels
      looked_up(:labels) { _labels.freeze }
    end

    private

    # @return [Array<String>, nil] what is to be found, where the model has no labels of its own
    def named_labels(labels)
      return unless takes_labels?
      raise ArgumentError, "this detector needs labels: with at least one label" if NilClass === labels

      Arguments.labels(labels)
    end

    def takes_labels?
      looked_up(:takes_labels) { _takes_labels }
    end

    def thing(label, score, corners)
      { label: label, score: score, box: %i[xmin ymin xmax ymax].zip(corners).to_h }
    end

    def smoke_test
      detect(Image::BLANK, labels: takes_labels? ? ["thing"] : nil)
    end
  end
end
