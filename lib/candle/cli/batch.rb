# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle embed`, `classify` and `entities`: a result for each text, in the order of the texts.
    #
    # @api private
    class Batch < Verb
      # Texts that are computed together.
      SLICE = 64
      private_constant :SLICE

      # @param options [Hash]
      # @param kind [Symbol] of model
      def initialize(options, kind)
        super(options)
        @kind = kind
      end

      # @param files [Array<String>]
      # @return [void]
      def call(files)
        @model = load_model(@kind, options[:model])
        records = Records.new(files, field: options[:field])
        writer = Writer.new(options[:output], format: options[:format], record_bytes: record_bytes)
        Terminal.note("#{writer.done} are done already") if writer.done.positive?
        work(records.lazy.drop(writer.done), writer, files)
      ensure
        writer&.close
      end

      private

      def record_bytes
        (options[:dimensions] || @model.dimension) * 4 if options[:format] == "packed"
      end

      def work(texts, writer, files)
        total = options[:output] && files.any? ? Records.new(files).count : nil
        progress = Progress.for(true)
        texts.each_slice(SLICE) do |slice|
          slice.zip(results(slice)) { |text, result| writer.write(text, result) }
          progress&.call(writer.done, total || writer.done)
        end
      end

      def results(texts)
        case @kind
        when :embedding then vectors(texts)
        when :classifier then @model.classify(texts, top_k: options[:top]).map { |labels| { labels: labels } }
        else
          @model.extract_entities(texts, confidence_threshold: options[:threshold]).map { |found| { entities: found } }
        end
      end

      def vectors(texts)
        given = { dimensions: options[:dimensions], prompt_name: options[:prompt_name] }.compact
        return @model.embed(texts, as: :packed, **given) if options[:format] == "packed"

        @model.embed(texts, **given).map { |vector| { embedding: vector } }
      end
    end
  end
end
