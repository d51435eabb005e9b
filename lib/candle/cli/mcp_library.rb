# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # The texts that `red-candle mcp --index` searches: those of a {Candle::Index} with a file of texts, or the passages
    # of files that `red-candle search` has indexed.
    #
    # @api private
    class McpLibrary
      # @param path [String] of the index
      # @param texts [String, nil] a file of texts: JSON lines with `id` and `text`, or lines whose ids are their
      #   numbers
      # @param model [String] the source of the model whose vectors the index has
      # @param dimension [Integer] of the model
      # @raise [Error] when the index is of another model
      def initialize(path, texts:, model:, dimension:)
        @passages = File.binread(path, 1) == "{"
        check_model(path, model) if @passages
        @index = @passages ? SearchIndex.new(path, model: model, dimension: dimension) : Index.open(path)
        check_dimension(path, dimension)
        @texts = texts ? read(texts) : {}
      end

      # @param vector [Array<Float>]
      # @param top [Integer]
      # @return [Array<Hash>] best first
      def search(vector, top)
        return @index.search(vector, top).filter_map { |found| passage(found) } if @passages

        @index.search(vector, top_k: top).map { |found| found.merge({ text: @texts[found[:id]] }.compact) }
      end

      private

      def check_model(path, model)
        made_with = JSON.parse(File.open(path, &:gets))["model"]
        return if made_with == model

        raise Error, "#{path} has vectors of the model #{made_with}: name it with --embed"
      rescue JSON::ParserError
        raise Error, "#{path} is not an index of red-candle: name another file with --index"
      end

      def check_dimension(path, dimension)
        return if @passages || @index.dimension == dimension

        raise Error, "#{path} has vectors of #{@index.dimension} components, and the model makes #{dimension}"
      end

      def read(path)
        File.foreach(path, encoding: "UTF-8", chomp: true).with_index(1).to_h do |line, number|
          line.start_with?("{") ? pair(line, "#{path}:#{number}") : [number, line]
        end
      end

      def pair(line, place)
        id, text = JSON.parse(line).values_at("id", "text")
        return [id, text] if text.is_a?(String) && (id.is_a?(Integer) || id.is_a?(String))

        raise Error, "#{place} has no id and text"
      rescue JSON::ParserError
        raise Error, "#{place} is not JSON"
      end

      # A file may have gone since.
      def passage(found)
        text = File.read(found[:path], encoding: "UTF-8").scrub
        { file: found[:path], line: text[0, found[:start]].to_s.count("\n") + 1, score: found[:score],
          text: text[found[:start], found[:length]] }
      rescue SystemCallError
        nil
      end
    end
  end
end
