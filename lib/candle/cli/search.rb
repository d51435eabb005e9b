# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle search`.
    #
    # @api private
    class Search < Verb
      TEXT_FILES = "**/*.{txt,md,markdown,rst,adoc,org,csv,html,rb,py,js,ts,go,rs,java,c,h}"
      private_constant :TEXT_FILES

      # @param sources [Array<String>] files and directories
      # @return [void]
      def call(sources)
        paths = files(sources)
        model = load_model(:embedding, options[:model])
        index = SearchIndex.new(options[:index], model: options[:model], dimension: model.dimension)
        read = index.update(paths) { |passages| model.embed(passages, normalize: true, as: :packed) }
        Terminal.note("#{read} of #{paths.size} files embedded")
        query_prompt = model.prompts.key?("query") ? "query" : nil
        vector = model.embed(options[:query], normalize: true, prompt_name: query_prompt)
        index.search(vector, options[:top]).each { |found| show_passage(found) }
      end

      private

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
