# frozen_string_literal: true

require "fileutils"

module Candle
  class CLI
    # `red-candle depth`.
    #
    # @api private
    class Depth < Verb
      # @param files [Array<String>]
      # @return [void]
      # @raise [ArgumentError] without a file
      def call(files)
        raise ArgumentError, "name at least one image" if files.empty?

        model = load_model(:depth_estimator, options[:model])
        files.each { |file| write(file, model.estimate(file)) }
      end

      private

      def write(file, found)
        numbers = found[:predicted_depth].to_a.flatten
        depth = { file: file, least: numbers.min, most: numbers.max, depth: saved(file, found[:depth]) }.compact
        show(depth) { puts line(depth) }
      end

      # @return [String, nil] the path of the picture
      def saved(file, image)
        directory = options[:output] or return
        FileUtils.mkdir_p(directory)
        File.join(directory, "#{File.basename(file, ".*")}-depth.png").tap { |path| image.save(path) }
      end

      def line(depth)
        numbers = depth.values_at(:least, :most).map { |number| format("%.4g", number) }
        [depth[:file], *numbers, *depth[:depth]].join("\t")
      end
    end
  end
end
