# frozen_string_literal: true

require "json"
require "pathname"

module Candle
  class CLI
    # What to work on: the lines of files or of standard input, a field of JSON lines, or images.
    #
    # @api private
    class Records
      include Enumerable

      # @param files [Array<String>]
      # @return [void]
      # @raise [Error] for what is not a file, before anything is computed
      def self.check(files)
        wrong = files.find { |path| !File.exist?(path) || File.directory?(path) } or return

        raise Error, File.directory?(wrong) ? "#{wrong} is a directory: name files in it" : "there is no file #{wrong}"
      end

      # @param files [Array<String>] none is standard input
      # @param field [String] where the text stands in JSON lines
      # @param images [Boolean] whether files that are images stand for themselves
      def initialize(files, field: "text", images: false)
        @files = files
        @field = field
        @images = images
      end

      # @yieldparam record [String, Pathname] a text, or the path of an image
      # @return [void]
      def each(&block)
        return enum_for(:each) unless block
        return each_line($stdin, "standard input", &block) if @files.empty?

        @files.each do |path|
          next yield(Pathname(path)) if @images && ImagePaths.image?(path)

          File.open(path, encoding: "UTF-8") { |file| each_line(file, path, &block) }
        end
      end

      private

      def each_line(input, name)
        input.each_line(chomp: true).with_index(1) do |line, number|
          yield line.start_with?("{") ? read(line, "#{name}:#{number}") : line unless line.empty?
        end
      end

      # A line that only looks like JSON is a text.
      def read(line, place)
        value = JSON.parse(line)
        text = value[@field]
        raise Error, "#{place} has no text in the field #{@field.inspect}" unless text.is_a?(String)

        text
      rescue JSON::ParserError
        line
      end
    end
  end
end
