# frozen_string_literal: true

module Candle
  module ActiveRecord
    # What makes a type of Active Record's attributes out of a vector column: numbers to a Ruby program, bytes to the
    # database. {VectorType.build} adds it to `ActiveModel::Type::Value`.
    #
    # @api private
    module VectorType
      # How PostgreSQL prints bytes.
      HEXADECIMAL = /\A\\x(?:\h\h)*\z/n

      class << self
        # @param limit [Integer, nil] the column's dimensions
        # @yieldreturn [Array(Symbol, Symbol)] one of {Codec::TYPES}, and `:postgresql` or `:sqlite`; asked on first use
        # @return [ActiveModel::Type::Value]
        def build(limit: nil, &description)
          base.new(limit: limit).tap { |type| type.describe(description) }
        end

        private

        def base
          @base ||= Class.new(::ActiveModel::Type::Value) { include VectorType }
        end
      end

      # @param description [Proc] as {VectorType.build} takes it
      # @return [void]
      def describe(description)
        @description = description
      end

      # @return [Symbol] as schema files name it
      def type
        adapter == :postgresql && kind != :int8 ? kind : :binary
      end

      # @param value [String, Array<Numeric>, nil] of the database
      # @return [Array<Numeric>, String, nil]
      def deserialize(value)
        return Codec.decode(value.to_s.b, kind, adapter) if value.is_a?(::ActiveModel::Type::Binary::Data)
        return value unless value.is_a?(String)
        return kind == :bit ? value : Codec.parse(value) if adapter == :postgresql && kind != :int8

        Codec.decode(value.match?(HEXADECIMAL) ? [value[2..]].pack("H*") : value.b, kind, adapter)
      end

      # @param value [Array<Numeric>, Tensor, String, nil] of a user: numbers, or what the database prints
      # @return [Array<Numeric>, String, nil]
      def cast(value)
        case value
        when nil then nil
        when Tensor then value.to_dtype(:f32).flatten_all.values
        when String then kind == :bit ? value : Codec.parse(value)
        else value.to_a
        end
      end

      # @param value [Array<Numeric>, String, nil]
      # @return [ActiveModel::Type::Binary::Data, nil] which Active Record sends as bytes
      def serialize(value)
        return if value.nil?

        ::ActiveModel::Type::Binary::Data.new(bytes_of(value))
      end

      private

      def bytes_of(value)
        return value.pack("c*") if kind == :int8

        value = Codec.signs(value) if value.is_a?(String)
        Codec.encode(Codec.pack(value), kind, adapter)
      end

      def kind
        description.first
      end

      def adapter
        description.last
      end

      def description
        @description = @description.call if @description.respond_to?(:call)
        @description
      end
    end
  end
end
