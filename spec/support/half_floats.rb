# frozen_string_literal: true

# Numbers as the little-endian bytes of a type of safetensors and GGUF files, and back.
module HalfFloats
  module_function

  # @return [String]
  def pack(numbers, dtype)
    singles = numbers.pack("e*")
    case dtype
    when "F32" then singles
    when "F16" then singles.unpack("e*").map { |number| half(number) }.pack("S<*")
    when "BF16" then singles.unpack("L<*").map { |bits| (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 }.pack("S<*")
    else raise ArgumentError, "#{dtype} has no numbers here"
    end
  end

  # @return [Array<Float>]
  def unpack(bytes, dtype)
    case dtype
    when "F32" then bytes.unpack("e*")
    when "BF16" then bytes.unpack("S<*").map { |bits| bits << 16 }.pack("L<*").unpack("e*")
    when "F16" then bytes.unpack("S<*").map { |bits| single(bits) }
    else raise ArgumentError, "#{dtype} has no numbers here"
    end
  end

  # @return [Integer] the bits of the nearest number of 16 bits, the even one of two
  def half(number)
    return 0 if number.zero?

    exponent = [Math.frexp(number).last - 1, -14].max
    steps = Math.ldexp(number.abs, 10 - exponent).round(half: :even)
    (number.negative? ? 0x8000 : 0) + ((exponent + 14) << 10) + steps
  end

  def single(bits)
    exponent = (bits >> 10) & 31
    fraction = bits & 1023
    size = exponent.zero? ? Math.ldexp(fraction, -24) : Math.ldexp(1024 + fraction, exponent - 25)
    bits < 0x8000 ? size : -size
  end
end
