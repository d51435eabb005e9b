# frozen_string_literal: true

module Candle
  class Tensor
    # How many elements {#to_s} shows before it leaves out the middle of long dimensions.
    SHOWN_WHOLE = 1000
    # How many elements at either end of a long dimension stay.
    SHOWN_EDGE = 3
    # How many values {#inspect} shows.
    SHOWN_FIRST = 6
    private_constant :SHOWN_WHOLE, :SHOWN_EDGE, :SHOWN_FIRST

    # @example
    #   Candle::Tensor.new([1, 2], :i64).inspect # => "#<Candle::Tensor [2] i64 cpu: 1, 2>"
    #
    # @return [String] one line: shape, type, device and the first values
    def inspect
      values = first_values
      values << "..." if elem_count > values.size
      "#<Candle::Tensor #{shape} #{dtype} #{device}: #{values.join(", ")}>"
    end

    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]], :i64).to_s
    #   # => "[[1, 2],\n [3, 4]]\nCandle::Tensor [2, 2] i64 cpu"
    #
    # @return [String] the elements in rows, without the middle of long dimensions, then shape, type
    #   and device
    def to_s
      summary = "Candle::Tensor #{shape} #{dtype} #{device}"
      return summary if rank > SHOWN_FIRST

      shown = elem_count > SHOWN_WHOLE ? edges : self
      text = formatted(shown.values)
      width = text.map(&:size).max.to_i
      rows = layout(shown.shape, text.map { |number| number.rjust(width) }.each, 0)
      "#{rows}\n#{summary}"
    end

    private

    def first_values
      missing = SHOWN_FIRST
      head = (rank - 1).downto(0).inject(self) do |tensor, dim|
        length = [shape[dim], missing].min
        missing = length.zero? ? 1 : (missing.to_f / length).ceil
        tensor.narrow(dim, 0, length)
      end
      head.values.first(SHOWN_FIRST)
    end

    # Long dimensions without their middle.
    def edges
      shape.each_with_index.inject(self) do |tensor, (size, dim)|
        next tensor unless long?(size)

        ends = [*0...SHOWN_EDGE, *(size - SHOWN_EDGE)...size]
        tensor.index_select(ends, dim)
      end
    end

    def long?(size)
      elem_count > SHOWN_WHOLE && size > 2 * SHOWN_EDGE
    end

    def formatted(numbers)
      return numbers.map(&:to_s) if numbers.first.is_a?(Integer)

      sizes = numbers.select { |number| number.finite? && !number.zero? }.map(&:abs)
      plain = sizes.empty? || (sizes.max < 1e6 && sizes.min >= 1e-4)
      numbers.map { |number| format(plain ? "%.4f" : "%.4e", number) }
    end

    def layout(sizes, texts, depth)
      return texts.next if sizes.empty?

      size, *rest = sizes
      items = Array.new(size) { layout(rest, texts, depth + 1) }
      items.insert(SHOWN_EDGE, "...") if long?(shape[depth])
      separator = rest.empty? ? ", " : ",#{"\n" * rest.size}#{" " * (depth + 1)}"
      "[#{items.join(separator)}]"
    end
  end
end
