# frozen_string_literal: true

Candle::Native.complete(:DType)

module Candle
  # The type of a tensor's elements: `u8 u32 i16 i32 i64 bf16 f16 f32 f64`. Models that embed,
  # rerank or label also compute in `int8` on the CPU, which no tensor holds.
  #
  # @example
  #   Candle::DType.parse(:f16).size_in_bytes # => 2
  class DType
    include Uncopyable

    # @return [Array<DType>] every type there is
    def self.all
      @all ||= _names.map { |name| _parse(name) }.freeze
    end

    # @param name [DType, Symbol, String]
    # @return [DType] the same as {.parse}
    def self.new(name)
      parse(name)
    end

    # @param name [DType, Symbol, String] such as `:f32`
    # @return [DType]
    # @raise [InvalidInputError] for an unknown name
    def self.parse(name)
      case name
      when String then _parse(TextInput.utf8(name, "dtype"))
      when Symbol, DType then _parse(name)
      else raise InvalidInputError, "dtype must be a Symbol, not #{Arguments.shown(name)}"
      end
    end

    # @!method size_in_bytes
    #   @return [Integer] bytes of one element
    # @!method float?
    #   @return [Boolean] whether elements are floating point numbers
    # @!method to_s
    #   @return [String] the name, such as `"f32"`
    # @!method to_sym
    #   @return [Symbol] the name, such as `:f32`

    # @param other [DType, Symbol, String]
    # @return [Boolean] whether `other` is this type or its name
    def ==(other)
      case other
      when DType, Symbol, String then to_s == other.to_s
      else false
      end
    end

    # @return [Boolean] whether `other` is a DType of the same type
    def eql?(other)
      DType === other && self == other
    end

    # @return [Integer]
    def hash
      to_s.hash
    end

    # @return [String]
    def inspect
      "#<Candle::DType #{self}>"
    end

    private

    def marshal_instead
      "send its name, and read it with DType.parse"
    end
  end
end
