# frozen_string_literal: true

module Candle
  module ActiveRecord
    # Vectors as databases take them: pgvector's binary format for PostgreSQL, packed bytes for SQLite. What comes in
    # is what `EmbeddingModel#embed` makes: little-endian f32.
    #
    # @api private
    module Codec
      # Kinds of columns: f32, f16, signed bytes, and one bit per component.
      TYPES = %i[vector halfvec int8 bit].freeze

      # PostgreSQL's functions that give a value in its binary format.
      SENDERS = { vector: "vector_send", halfvec: "halfvec_send", bit: "bit_send" }.freeze

      module_function

      # @param vector [String, Array<Numeric>, Tensor] packed f32, or numbers
      # @return [String] packed little-endian f32
      def pack(vector)
        case vector
        when Array then vector.pack("e*")
        when Tensor then vector.to_dtype(:f32).flatten_all.to_packed
        else vector.b
        end
      end

      # @param packed [String] little-endian f32
      # @param type [Symbol] one of {TYPES}
      # @param adapter [Symbol] `:postgresql` or `:sqlite`
      # @return [String] the bytes that the database takes
      def encode(packed, type, adapter)
        bytes = quantize(packed, type)
        adapter == :postgresql ? wire(bytes, type, packed.bytesize / 4) : bytes
      end

      # @param bytes [String] as {.encode} made them
      # @param type [Symbol] one of {TYPES}
      # @param adapter [Symbol] `:postgresql` or `:sqlite`
      # @return [Array<Numeric>, String] numbers; for bits a String of zeros and ones
      def decode(bytes, type, adapter)
        body = adapter == :postgresql && type != :int8 ? bytes.byteslice(4..) : bytes
        case type
        when :vector then body.unpack(adapter == :postgresql ? "g*" : "e*")
        when :halfvec then halves(adapter == :postgresql ? body.unpack("n*").pack("v*") : body)
        when :int8 then body.unpack("c*")
        when :bit then body.unpack1("B#{adapter == :postgresql ? bytes.unpack1("N") : 8 * body.bytesize}")
        end
      end

      # @param packed [String] little-endian f32
      # @param type [Symbol] one of {TYPES}
      # @return [String] the components in that type, little-endian
      def quantize(packed, type)
        case type
        when :vector then packed
        when :halfvec
          Tensor.from_packed(packed, [packed.bytesize / 4], :f32).to_dtype(:f16).to_packed
        when :int8 then signed_bytes(packed.unpack("e*"))
        when :bit then [packed.unpack("e*").map { |value| value.positive? ? "1" : "0" }.join].pack("B*")
        end
      end

      # @param bits [String] zeros and ones
      # @return [Array<Float>] a vector with these signs
      def signs(bits)
        bits.each_char.map { |bit| bit == "1" ? 1.0 : -1.0 }
      end

      # @param text [String] as PostgreSQL prints it: `[1,2.5]`
      # @return [Array<Float>]
      def parse(text)
        text.delete_prefix("[").delete_suffix("]").split(",").map(&:to_f)
      end

      def signed_bytes(values)
        greatest = values.map(&:abs).max.to_f
        scale = greatest.zero? ? 0.0 : 127 / greatest
        values.map { |value| (value * scale).round }.pack("c*")
      end

      def halves(bytes)
        Tensor.from_packed(bytes, [bytes.bytesize / 2], :f16).to_dtype(:f32).to_packed.unpack("e*")
      end

      # pgvector's headers: the dimension and an unused word before numbers, the count of bits before bits.
      def wire(bytes, type, dimension)
        case type
        when :vector then [dimension, 0].pack("nn") << bytes.unpack("V*").pack("N*")
        when :halfvec then [dimension, 0].pack("nn") << bytes.unpack("v*").pack("n*")
        when :bit then [dimension].pack("N") << bytes
        else bytes
        end
      end
      private_class_method :signed_bytes, :halves, :wire
    end
  end
end
