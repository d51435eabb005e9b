# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle search`.
    #
    # @api private
    class Search < Verb
      TEXT_FILES = "**/*.{txt,md,markdown,rst,adoc,org,csv,html,rb,py,js,ts,go,rs,java,c,h}"
      # What files are written in, by the ends of their names; others are code.
      FORMATS = { ".md" => :markdown, ".markdown" => :markdown, "" => :text, ".txt" => :text, ".rst" => :text,
                  ".adoc" => :text, ".org" => :text, ".csv" => :text, ".html" => :text }.freeze
      PASSAGE_TOKENS = 200
      # What models add around a text, at most.
      SPECIAL_TOKENS = 4
      private_constant :TEXT_FILES, :FORMATS, :PASSAGE_TOKENS, :SPECIAL_TOKENS

      # @param sources [Array<String>] files and directories
      # @return [void]
      def call(sources)
        paths = files(sources)
        model = load_model(:embedding, options[:model])
        index = SearchIndex.new(options[:index], model: options[:model], dimension: model.dimension)
        read = index.update(paths, split: splitter(model)) do |passages|
          model.embed(passages, normalize: true, as: :packed)
        end
        Terminal.note("#{read} of #{paths.size} files embedded")
        query_prompt = model.prompts.key?("query") ? "query" : nil
        vector = model.embed(options[:query], normalize: true, prompt_name: query_prompt)
        index.search(vector, options[:top]).each { |found| show_passage(found) }
      end

      private

      # Passages of some sentences are found better than whole pages.
      def splitter(model)
        size = [model.max_length, PASSAGE_TOKENS].compact.min - SPECIAL_TOKENS
        splitters = Hash.new { |all, format| all[format] = TextSplitter.new(model, size: size, format: format) }
        lambda do |path, text|
          format = FORMATS.fetch(File.extname(path), :code)
          chunks = splitters[format].split(text).reject { |chunk| chunk.text.strip.empty? }
          chunks.map { |chunk| [chunk.start, chunk.text.rstrip.size] }
        end
      end

      def files(sources)
        raise ArgumentError, "search needs files or directories to look in" if sources.empty?

        paths = sources.flat_map do |source|
          File.directory?(source) ? Dir.glob(File.join(source, TEXT_FILES)) : source
        end
        missing = paths.find { |path| !File.file?(path) }
        raise Error, "there is no file #{missing}" if missing

        paths.uniq.sort - [options[:index]]
      end

      def show_passage(found)
        text = File.read(found[:path], encoding: "UTF-8").scrub
        line = text[0, found[:start]].count("\n") + 1
        passage = text[found[:start], found[:length]]
        show({ file: found[:path], line: line, score: found[:score], text: passage }) do
          puts format("%<score>.3f  %<path>s:%<line>d", score: found[:score], path: found[:path], line: line),
               passage.gsub(/^/, "  "), ""
        end
      end
    end
  end
end
