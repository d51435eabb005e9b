# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # Texts to work on: the lines of files or of standard input, or a field of JSON lines.
    #
    # @api private
    class Records
      include Enumerable

      # @param files [Array<String>] none is standard input
      # @param field [String] where the text stands in JSON lines
      def initialize(files, field: "text")
        @files = files
        @field = field
      end

      # @yieldparam text [String]
      # @return [void]
      def each(&block)
        return enum_for(:each) unless block
        return each_line($stdin, "standard input", &block) if @files.empty?

        @files.each { |path| File.open(path, encoding: "UTF-8") { |file| each_line(file, path, &block) } }
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
