# frozen_string_literal: true

module Tasks
  module Metal
    # Reads which symbols a 64-bit Mach-O library imports, from where, and which it exports.
    class MachO
      Import = Struct.new(:name, :library)

      MAGIC = 0xfeedfacf
      LOAD_DYLIB = [0xc, 0x80000018].freeze
      SYMBOL_TABLE = 2
      # Bits of a symbol's type.
      DEBUG = 0xe0
      KIND = 0x0e
      EXTERNAL = 0x01
      UNDEFINED = 0
      # What no library was named for is looked up in the process.
      DYNAMIC_LOOKUP = [0, 254].freeze

      attr_reader :imports, :exports

      def initialize(path)
        @data = File.binread(path)
        raise "#{path} is not a 64-bit Mach-O file" unless @data.unpack1("V") == MAGIC

        @libraries = []
        @imports = []
        @exports = []
        read_commands(@data.unpack1("V", offset: 16))
      end

      private

      def read_commands(count)
        offset = 32
        count.times do
          command, size = @data.unpack("VV", offset:)
          if LOAD_DYLIB.include?(command)
            @libraries << @data.unpack1("Z*", offset: offset + @data.unpack1("V", offset: offset + 8))
          elsif command == SYMBOL_TABLE
            @symbol_table = @data.unpack("VVV", offset: offset + 8)
          end
          offset += size
        end
        read_symbols(*@symbol_table)
      end

      def read_symbols(offset, count, strings)
        count.times do |index|
          name, type, _section, description = @data.unpack("VCCv", offset: offset + (16 * index))
          next unless (type & DEBUG).zero? && (type & EXTERNAL) == EXTERNAL

          text = @data.unpack1("Z*", offset: strings + name)
          if (type & KIND) == UNDEFINED
            @imports << Import.new(text, library_of(description >> 8))
          else
            @exports << text
          end
        end
      end

      def library_of(ordinal)
        DYNAMIC_LOOKUP.include?(ordinal) ? "the process" : File.basename(@libraries.fetch(ordinal - 1))
      end
    end
  end
end
