# frozen_string_literal: true

require "fileutils"

module Candle
  class CLI
    # `red-candle segment`.
    #
    # @api private
    class Segment < Verb
      # @param files [Array<String>]
      # @return [void]
      # @raise [ArgumentError] without a file
      def call(files)
        raise ArgumentError, "name at least one image" if files.empty?

        model = load_model(:image_segmenter, options[:model])
        files.each { |file| write(file, model.segment(file, labels: options[:labels])) }
      end

      private

      def write(file, parts)
        parts = parts.map { |part| { label: part[:label], score: part[:score], mask: saved(file, part) }.compact }
        show({ file: file, parts: parts }) { parts.each { |part| puts line(file, part) } }
      end

      # @return [String, nil] the path of the mask
      def saved(file, part)
        directory = options[:output] or return
        FileUtils.mkdir_p(directory)
        name = "#{File.basename(file, ".*")}-#{part[:label].gsub(/[^\p{Alnum}]+/, "_")}.png"
        File.join(directory, name).tap { |path| part[:mask].save(path) }
      end

      def line(file, part)
        [file, part[:label], format("%.3f", part[:score]), *part[:mask]].join("\t")
      end
    end
  end
end
