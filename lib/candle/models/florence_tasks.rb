# frozen_string_literal: true

module Candle
  # What Florence-2 does, by name: what it is asked for each task, and what becomes of its answer.
  #
  # - `ocr caption detailed_caption more_detailed_caption region_to_category region_to_description region_to_ocr` give a
  #   String.
  # - `detect dense_region_caption region_proposal phrase_grounding open_vocabulary_detection` give a list of
  #   `{label:, box: {xmin:, ymin:, xmax:, ymax:}}`.
  # - `ocr_with_region` gives a list of `{text:, quad: [[x, y], ...]}`, four corners each.
  # - `segment region_to_segmentation` give a list of `{label:, polygons: [[[x, y], ...], ...]}`.
  #
  # Places are in pixels of the image.
  module FlorenceTasks
    # What is asked, and what kind of answer it has.
    TASKS = {
      ocr: ["What is the text in the image?", :text],
      ocr_with_region: ["What is the text in the image, with regions?", :quads],
      caption: ["What does the image describe?", :text],
      detailed_caption: ["Describe in detail what is shown in the image.", :text],
      more_detailed_caption: ["Describe with a paragraph what is shown in the image.", :text],
      detect: ["Locate the objects with category name in the image.", :boxes],
      dense_region_caption: ["Locate the objects in the image, with their descriptions.", :boxes],
      region_proposal: ["Locate the region proposals in the image.", :unnamed_boxes],
      phrase_grounding: ["Locate the phrases in the caption: {input}", :boxes],
      segment: ["Locate {input} in the image with mask", :polygons],
      region_to_segmentation: ["What is the polygon mask of region {input}", :polygons],
      open_vocabulary_detection: ["Locate {input} in the image.", :boxes_or_polygons],
      region_to_category: ["What is the region {input}?", :text],
      region_to_description: ["What does the region {input} describe?", :text],
      region_to_ocr: ["What text is in the region {input}?", :text]
    }.freeze

    # Tasks that need a text: a caption, the name of a thing, or a region as `<loc_52><loc_332><loc_932><loc_774>`.
    WITH_TEXT = TASKS.filter_map { |name, task| name if task.first.include?("{input}") }.freeze

    # Coordinates are thousandths of an edge.
    BINS = 1000
    # Tokens that stand around an answer.
    AROUND = %r{</?s>|<pad>}
    LOCATION = /<loc_(\d+)>/
    QUAD = /(.+?)#{"<loc_(\\d+)>" * 8}/
    BOX = /#{"<loc_(\\d+)>" * 4}/
    private_constant :BINS, :AROUND, :LOCATION, :QUAD, :BOX

    class << self
      # @return [Array<Symbol>]
      def names
        TASKS.keys
      end

      # @param task [Symbol, String]
      # @return [Symbol]
      # @raise [ArgumentError] for an unknown task
      def named(task)
        name = Arguments.label(task, "task").to_sym
        return name if TASKS.key?(name)

        raise ArgumentError, Hints.with("unknown task #{name.inspect}", ["Known are #{names.join(", ")}"])
      end

      # @param task [Symbol]
      # @param text [String, nil]
      # @return [String] what the model is asked
      # @raise [ArgumentError] for a text where the task takes none, or none where it takes one
      def prompt(task, text)
        needed = WITH_TEXT.include?(task)
        raise ArgumentError, "the task #{task} needs text:, what it is about" if needed && text.nil?
        raise ArgumentError, "the task #{task} takes no text:" if text && !needed

        TASKS.fetch(task).first.sub("{input}") { text.strip }
      end

      # @param task [Symbol]
      # @param answer [String] the answer, special tokens included
      # @param size [Array(Integer, Integer)] width and height of the image
      # @return [String, Array<Hash>]
      def result(task, answer, size)
        answer = answer.gsub(AROUND, "")
        kind = TASKS.fetch(task).last
        kind = answer.include?("<poly>") ? :polygons : :boxes if kind == :boxes_or_polygons
        case kind
        when :text then answer.strip
        when :quads then quads(answer, size)
        when :boxes then boxes(answer.scan(/[^<]+(?:<loc_\d+>){4,}/), size)
        when :unnamed_boxes then boxes(answer.scan(/(?:<loc_\d+>){4,}/), size)
        else polygons(answer, task, size)
        end
      end

      private

      # The middle of a bin, cut to a pixel.
      def point(across, down, size)
        [[across, size[0]], [down, size[1]]].map { |bin, edge| ((bin.to_i + 0.5) * (edge / BINS.to_f)).to_i }
      end

      def points(bins, size)
        bins.each_slice(2).filter_map { |across, down| point(across, down, size) if down }
      end

      def quads(answer, size)
        answer.scan(QUAD).map { |text, *bins| { text: text.strip, quad: points(bins, size) } }
      end

      # Labels are ASCII, as the reference leaves them.
      def label(phrase)
        phrase[/\A[^<]*/].encode("US-ASCII", invalid: :replace, undef: :replace, replace: "").encode("UTF-8").strip
      end

      def boxes(phrases, size)
        phrases.flat_map do |phrase|
          phrase.scan(BOX).map do |bins|
            { label: label(phrase), box: %i[xmin ymin xmax ymax].zip(points(bins, size).flatten).to_h }
          end
        end
      end

      def polygons(answer, task, size)
        name = task == :open_vocabulary_detection ? "[^<]+" : ""
        answer.scan(%r{#{name}(?:<loc_\d+>|<sep>|<poly>|</poly>){4,}}).flat_map do |phrase|
          parts = phrase.scan(%r{<poly>(.*?)</poly>}).flatten
          parts = [phrase] if parts.empty?
          parts.filter_map { |part| polygon(part, label(phrase), size) }
        end
      end

      def polygon(part, label, size)
        rings = part.scan(/((?:<loc_\d+>)+)(?:<sep>|\z)/).map { |ring,| points(ring.scan(LOCATION).flatten, size) }
        { label: label, polygons: rings } unless rings.empty?
      end
    end
  end
end
