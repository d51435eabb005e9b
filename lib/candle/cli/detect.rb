# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # `red-candle detect`.
    #
    # @api private
    class Detect < Verb
      # @param files [Array<String>]
      # @return [void]
      # @raise [ArgumentError] without a file, or when a picture is wanted of several
      def call(files)
        raise ArgumentError, "name at least one image" if files.empty?
        raise ArgumentError, "--output takes one image" if options[:output] && files.size > 1

        model = load_model(:object_detector, options[:model])
        files.each { |file| write(file, model) }
      end

      private

      def write(file, model)
        image = Image.open(file)
        found = model.detect(image, labels: options[:labels], threshold: options[:threshold])
        image.draw_boxes(found).save(options[:output]) if options[:output]
        show({ file: file, objects: found }) { found.each { |thing| puts line(file, thing) } }
      end

      def line(file, thing)
        box = thing[:box].values.map { |edge| format("%.1f", edge) }
        "#{file}\t#{thing[:label]}\t#{format("%.3f", thing[:score])}\t#{box.join(" ")}"
      end
    end
  end
end
