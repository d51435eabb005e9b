# frozen_string_literal: true

require "fileutils"

module Candle
  # A GGUF file, version 3: keys and values, descriptions of tensors, and their bytes one after the other.
  #
  # @api private
  class GgufWriter
    ALIGNMENT = 32
    # GGUF's numbers of tensor types, elements of a block and its bytes.
    TENSOR_TYPES = {
      "f32" => [0, 1, 4], "f16" => [1, 1, 2], "bf16" => [30, 1, 2],
      "q4_0" => [2, 32, 18], "q4_1" => [3, 32, 20], "q5_0" => [6, 32, 22], "q5_1" => [7, 32, 24], "q8_0" => [8, 32, 34],
      "q2_k" => [10, 256, 84], "q3_k" => [11, 256, 110], "q4_k" => [12, 256, 144], "q5_k" => [13, 256, 176],
      "q6_k" => [14, 256, 210], "iq4_nl" => [20, 32, 18], "iq4_xs" => [23, 256, 136],
      "iq1_s" => [19, 256, 50], "iq1_m" => [29, 256, 56], "iq2_xxs" => [16, 256, 66], "iq2_xs" => [17, 256, 74],
      "iq2_s" => [22, 256, 82], "iq3_xxs" => [18, 256, 98], "iq3_s" => [21, 256, 110], "tq1_0" => [34, 256, 54],
      "tq2_0" => [35, 256, 66], "mxfp4" => [39, 32, 17], "nvfp4" => [40, 64, 36]
    }.freeze
    # A value of a type that Ruby's own does not say.
    Typed = Struct.new(:number, :pack, :value)
    Strings = Struct.new(:list)
    Floats = Struct.new(:list)
    Integers = Struct.new(:list)
    Flags = Struct.new(:list)
    Bytes = Struct.new(:string)

    class << self
      def u32(value)
        Typed.new(4, "L<", value)
      end

      def u16(value)
        Typed.new(2, "S<", value)
      end

      def i32(value)
        Typed.new(5, "l<", value)
      end
    end

    # @param path [String]
    # @param metadata [Hash{String => Object}]
    # @param tensors [Array<Hash>] `name:`, `shape:` (outermost first) and `type:` each
    # @param shard_size [Integer, nil]
    def initialize(path, metadata, tensors, shard_size)
      @path = path
      @metadata = metadata
      @tensors = tensors
      @shards = shard_size ? shards(shard_size) : [tensors]
    end

    # @yieldparam tensor [Hash]
    # @yieldparam done [Integer] how many are written with it
    # @yieldreturn [#sum] its bytes, in parts that are written one after the other
    # @return [String] the path of the first file
    def write(&)
      FileUtils.mkdir_p(File.dirname(@path))
      staged = []
      @done = 0
      @shards.each_with_index do |tensors, number|
        final = @shards.size == 1 ? @path : part(number)
        staged << ["#{final}.#{Process.pid}.part", final]
        File.open(staged.last.first, "wb") { |file| write_file(file, tensors, number, &) }
      end
      staged.each { |from, to| File.rename(from, to) }
      staged.first.last
    ensure
      staged&.each { |from, _| FileUtils.rm_f(from) }
    end

    private

    def part(number)
      format("%<name>s-%<number>05d-of-%<count>05d.gguf", name: @path.delete_suffix(".gguf"), number: number + 1,
                                                          count: @shards.size)
    end

    def shards(limit)
      total = 0
      @tensors.slice_when do |tensor, following|
        total += bytes(tensor)
        full = total + bytes(following) > limit
        total = 0 if full
        full
      end.to_a
    end

    def bytes(tensor)
      _, elements, size = TENSOR_TYPES.fetch(tensor[:type])
      tensor[:shape].inject(1, :*) / elements * size
    end

    def padded(size)
      (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
    end

    def write_file(file, tensors, number)
      metadata = number.zero? ? @metadata : {}
      if @shards.size > 1
        metadata = metadata.merge("split.no" => self.class.u16(number), "split.count" => self.class.u16(@shards.size),
                                  "split.tensors.count" => self.class.i32(@tensors.size))
      end
      file << header(metadata, tensors)
      pad(file)
      tensors.each do |tensor|
        # Ruby would keep the bytes until it collects garbage.
        size = yield(tensor, @done += 1).sum { |part| file.write(part).tap { part.clear } }
        unless size == bytes(tensor)
          raise InternalError, "#{tensor[:name]} has #{size} bytes instead of #{bytes(tensor)}"
        end

        pad(file)
      end
      file.fsync
    end

    def pad(file)
      file << ("\0" * (padded(file.pos) - file.pos))
    end

    def header(metadata, tensors)
      result = ["GGUF", 3, tensors.size, metadata.size].pack("a4L<Q<Q<")
      metadata.each { |key, value| result << text(key) << value(value) }
      offset = 0
      tensors.each do |tensor|
        type, = TENSOR_TYPES.fetch(tensor[:type])
        shape = tensor[:shape].reverse
        result << text(tensor[:name]) << [shape.size, *shape, type, offset].pack("L<Q<#{shape.size}L<Q<")
        offset += padded(bytes(tensor))
      end
      result
    end

    def text(string)
      string = string.encode("UTF-8").b
      [string.bytesize].pack("Q<") << string
    end

    def value(value)
      case value
      when Typed then [value.number].pack("L<") << [value.value].pack(value.pack)
      when String then [8].pack("L<") << text(value)
      when true, false then [7, value ? 1 : 0].pack("L<C")
      when Float then [6, value].pack("L<e")
      else list(value)
      end
    end

    def list(value)
      case value
      when Strings then array(8, value.list) { |one| text(one) }
      when Floats then array(6, value.list) { |one| [one].pack("e") }
      when Bytes then [9, 0, value.string.bytesize].pack("L<L<Q<") << value.string.b
      when Flags then array(7, value.list) { |one| [one ? 1 : 0].pack("C") }
      when Integers then array(5, value.list) { |one| [one].pack("l<") }
      else raise InternalError, "#{value.inspect} has no GGUF type"
      end
    end

    def array(number, values)
      result = [9, number, values.size].pack("L<L<Q<")
      values.each { |one| result << yield(one) }
      result
    end
  end
end
