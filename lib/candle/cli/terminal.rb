# frozen_string_literal: true

module Candle
  class CLI
    # What commands write for people, and whether there are any.
    #
    # @api private
    module Terminal
      UNITS = %w[B kB MB GB TB].freeze
      private_constant :UNITS

      module_function

      # Says something on standard error, where someone reads it.
      #
      # @param message [String]
      # @return [void]
      def note(message)
        warn(message) if $stderr.tty?
      end

      # @param bytes [Integer]
      # @return [String]
      def size(bytes)
        value = bytes.to_f
        unit = UNITS.find { (value < 1000) || !(value /= 1000) } || UNITS.last
        unit == "B" ? "#{bytes} B" : format("%<value>.1f %<unit>s", value: value, unit: unit)
      end

      # @param rows [Array<Array>]
      # @return [void]
      def table(rows)
        widths = rows.map { |row| row.map { |cell| cell.to_s.size } }.transpose.map(&:max)
        rows.each { |row| puts row.zip(widths).map { |cell, width| cell.to_s.ljust(width) }.join("  ").rstrip }
      end
    end
  end
end
