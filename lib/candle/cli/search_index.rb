# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # The vectors of passages in one file: a line of JSON that says whose they are, then little-endian floats.
    #
    # @api private
    class SearchIndex
      # @param path [String]
      # @param model [String] whose vectors count; a file with vectors of another model is replaced
      # @param dimension [Integer]
      def initialize(path, model:, dimension:)
        @path = path
        @head = { "red_candle_index" => 1, "model" => model, "dimension" => dimension }
        @files = {}
        read if File.file?(path)
      end

      # Brings the vectors of files up to date and leaves out files that are not named.
      #
      # @param paths [Array<String>]
      # @param split [Proc] takes a path and its text, and gives where passages begin and their lengths, in characters
      # @yieldparam texts [Array<String>] passages
      # @yieldreturn [Array<String>] their vectors, packed
      # @return [Integer] how many files were read
      def update(paths, split:, &embed)
        changed = paths.reject { |path| known?(path) }
        @files = @files.slice(*paths)
        changed.each { |path| @files[path] = entry(path, split, &embed) }
        @files = paths.to_h { |path| [path, @files.fetch(path)] }
        write
        changed.size
      end

      # @param vector [Array<Float>]
      # @param top [Integer]
      # @return [Array<Hash>] `{path:, start:, length:, score:}`, best first
      def search(vector, top)
        places = @files.flat_map { |path, file| file["passages"].map { |start, length| [path, start, length] } }
        return [] if places.empty?

        packed = @files.each_value.flat_map { |file| file["vectors"] }.join
        matrix = Tensor.from_packed(packed, [places.size, @head["dimension"]], :f32, device: "cpu")
        matrix.nearest(Tensor.new(vector, device: "cpu"), top_k: top).map do |row, score|
          path, start, length = places[row]
          { path: path, start: start, length: length, score: score }
        end
      end

      private

      def known?(path)
        @files[path]&.slice("size", "modified") == stamp(path)
      end

      def stamp(path)
        stat = File.stat(path)
        { "size" => stat.size, "modified" => stat.mtime.to_f }
      end

      def entry(path, split)
        text = File.read(path, encoding: "UTF-8").scrub
        passages = split.call(path, text)
        vectors = passages.empty? ? [] : yield(passages.map { |start, length| text[start, length] })
        stamp(path).merge("passages" => passages, "vectors" => vectors)
      end

      # A file of another model, or one that is not whole, counts as none.
      def read
        File.open(@path, "rb") do |file|
          head = JSON.parse(file.gets.to_s)
          @files = entries(head["files"], file) if head.slice(*@head.keys) == @head
        end
      rescue JSON::ParserError
        raise Error, "#{@path} is not an index of red-candle: name another file with --index"
      end

      def entries(files, input)
        bytes = @head["dimension"] * 4
        found = files.transform_values do |entry|
          entry.merge("vectors" => Array.new(entry["passages"].size) { input.read(bytes) })
        end
        found.each_value.all? { |entry| entry["vectors"].all? { |vector| vector&.bytesize == bytes } } ? found : {}
      end

      # The old file stays until the new one is whole.
      def write
        head = @head.merge("files" => @files.transform_values { |entry| entry.except("vectors") })
        content = "#{JSON.generate(head)}\n".b
        @files.each_value { |entry| entry["vectors"].each { |vector| content << vector } }
        Utils.replace_file(@path, "the index", content)
      end
    end
  end
end
