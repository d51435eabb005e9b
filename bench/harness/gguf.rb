# frozen_string_literal: true

module Bench
  # How large the tensors in a GGUF file are, by its header.
  class Gguf
    # Bytes of each type of metadata that has a fixed size.
    FIXED = { 0 => 1, 1 => 1, 2 => 2, 3 => 2, 4 => 4, 5 => 4, 6 => 4, 7 => 1, 10 => 8, 11 => 8, 12 => 8 }.freeze
    STRING = 8
    ARRAY = 9
    # Elements and bytes of a block, by the number of its type.
    BLOCKS = { 0 => [1, 4], 1 => [1, 2], 2 => [32, 18], 3 => [32, 20], 6 => [32, 22], 7 => [32, 24], 8 => [32, 34],
               10 => [256, 84], 11 => [256, 110], 12 => [256, 144], 13 => [256, 176], 14 => [256, 210],
               30 => [1, 2] }.freeze
    TABLE = "token_embd.weight"
    HEAD = "output.weight"

    # @param path [String]
    # @return [Integer] bytes of the weights that each token needs: all, without the table of tokens where the head
    #   is another matrix
    def self.bytes_per_token(path)
      sizes = File.open(path, "rb") { |file| new(file).sizes }
      sizes.key?(HEAD) ? sizes.values.sum - sizes.fetch(TABLE) : sizes.values.sum
    end

    def initialize(file)
      @file = file
    end

    # @return [Hash{String => Integer}] bytes of each tensor
    def sizes
      magic, version = @file.read(8).unpack("a4V")
      raise ArgumentError, "#{@file.path} is no GGUF file of version 2 or 3" unless magic == "GGUF" && version > 1

      tensors = long
      long.times do
        string
        skip(int)
      end
      Array.new(tensors) { tensor }.to_h
    end

    private

    def tensor
      name = string
      elements = Array.new(int) { long }.inject(1, :*)
      per_block, bytes = BLOCKS.fetch(int)
      long
      [name, elements / per_block * bytes]
    end

    def skip(type, count = 1)
      case type
      when STRING then count.times { string }
      when ARRAY then skip(int, long)
      else @file.seek(FIXED.fetch(type) * count, IO::SEEK_CUR)
      end
    end

    def string
      @file.read(long)
    end

    def int
      @file.read(4).unpack1("V")
    end

    def long
      @file.read(8).unpack1("Q<")
    end
  end
end
