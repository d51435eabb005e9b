# frozen_string_literal: true

require "digest"

module Candle
  module ActiveRecord
    # What {Model#has_embedding} declared: which text becomes a vector by which model, and where it is kept.
    #
    # @api private
    class Embedding
      # When a record's vector is made: with it, by a job after it, or only when asked for.
      UPDATES = %i[now later manual].freeze

      # @return [Array<Symbol>] the attributes or methods that the text comes from
      attr_reader :sources
      # @return [String] the column of the vector
      attr_reader :column
      # @return [String] the column of the digest
      attr_reader :digest_column
      # @return [String, nil] the column of the vector's signs, which finds candidates
      attr_reader :bits
      # @return [String, EmbeddingModel] where the model is loaded from, or itself
      attr_reader :model
      # @return [Symbol] one of {UPDATES}
      attr_reader :update

      def initialize(sources, model:, dimensions: nil, column: :embedding, digest: nil, revision: nil, type: nil,
                     bits: nil, prompt: nil, prompt_name: nil, query_prompt: nil, query_prompt_name: nil,
                     device: nil, dtype: nil, update: :now)
        raise ArgumentError, "has_embedding needs the attribute whose text is embedded" if sources.empty?

        @sources = sources.map(&:to_sym)
        @model = model
        @loading = { revision: revision, device: device, dtype: dtype }.compact
        @dimensions = Arguments.count(dimensions, "dimensions")
        @column = column.to_s
        @digest_column = (digest || "#{column}_digest").to_s
        @type = type && Arguments.choice(type, "type", Codec::TYPES)
        @bits = bits && (bits == true ? "#{column}_bits" : bits.to_s)
        @prompts = { prompt: prompt, prompt_name: prompt_name }.compact
        @query_prompts = { prompt: query_prompt, prompt_name: query_prompt_name }.compact
        @update = Arguments.choice(update, "update", UPDATES)
      end

      # @param record [ActiveRecord::Base]
      # @return [String, nil] what is embedded; nil where there is nothing
      def text(record)
        parts = @sources.map { |source| record.public_send(source) }
        text = parts.filter_map { |part| part.to_s unless part.nil? || part.to_s.strip.empty? }.join("\n\n")
        text unless text.empty?
      end

      # @return [Boolean] whether the record was loaded with what the text comes from
      def readable?(record)
        columns = record.class.column_names
        [*@sources.map(&:to_s), @digest_column].all? { |name| !columns.include?(name) || record.has_attribute?(name) }
      end

      # A text that is made by a method may need any column but those of vectors.
      #
      # @param klass [Class] a model of Active Record
      # @return [Array<Arel::Attribute>] what is read to know the text and its digest
      def columns_of_text(klass)
        (klass.column_names - [@column, *@bits]).map { |name| klass.arel_table[name] }
      end

      # The digest of a text, of the model with its revision, and of what else a vector depends on.
      #
      # @param text [String, nil]
      # @return [String, nil] 64 hexadecimal digits
      def digest(text)
        return if text.nil?

        named = @model.respond_to?(:model_id) ? @model.model_id : @model
        parts = [named, *@loading.values_at(:revision, :dtype), @dimensions, *@prompts.values_at(:prompt, :prompt_name)]
        Digest::SHA256.hexdigest([*parts, text].map { |part| part.to_s.b }.join("\0"))
      end

      # @return [Boolean] whether the record's vector is that of its text
      def current?(record)
        record[@digest_column] == digest(text(record))
      end

      # @param texts [Array<String>]
      # @return [Array<String>] packed little-endian f32, one per text
      def vectors(texts)
        with_model { |model| model.embed(texts, as: :packed, dimensions: @dimensions, **@prompts) }
      end

      # @param query [String, Array<Float>, Tensor] a text, or a vector; a binary String of the right length is a
      #   packed vector
      # @return [String] packed little-endian f32
      def query_vector(query)
        return Codec.pack(query) if !query.is_a?(String) || packed?(query)

        with_model { |model| model.embed(query, as: :packed, dimensions: @dimensions, **@query_prompts) }
      end

      # @yieldparam model [EmbeddingModel]
      # @return [Object] what the block returns
      def with_model(&block)
        return yield(@model) unless @model.is_a?(String) || @model.respond_to?(:to_path)

        ModelRegistry.shared.use(@model, **@loading, &block)
      end

      # @param klass [Class] a model of Active Record
      # @return [Symbol] what the column holds, one of {Codec::TYPES}
      def type(klass)
        column = column_of(klass, @column)
        column_of(klass, @digest_column)
        @type ||= type_of(column)
      end

      private

      def packed?(query)
        query.encoding == Encoding::BINARY && @dimensions && query.bytesize == 4 * @dimensions
      end

      def type_of(column)
        case column.sql_type
        when /\Ahalfvec/i then :halfvec
        when /\Abit/i then :bit
        when /\Abytea/i then :int8
        else :vector
        end
      end

      def column_of(klass, name)
        klass.columns_hash.fetch(name) do
          raise Error, "#{klass.table_name} has no column #{name}: add it with " \
                       "`rails generate candle:embedding #{klass.name} #{@sources.first}`, " \
                       "or with add_embedding in a migration"
        end
      end
    end
  end
end
