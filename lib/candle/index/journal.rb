# frozen_string_literal: true

require "json"
require "zlib"

module Candle
  # What follows the vectors in the file of an {Index}: batches of what was added and deleted, each with a checksum. A
  # batch that was cut short ends the file; whoever writes next puts the next one in its place.
  #
  # @api private
  class IndexJournal
    # Begins every batch; its number, length and checksum follow.
    MAGIC = "RCBATCH1"
    HEADER = 32
    # Where the file says where its vectors end.
    PLACE = 48
    private_constant :MAGIC, :HEADER, :PLACE

    # @return [Integer] where the last whole batch ends
    attr_reader :end
    # @return [Integer] how many batches there are
    attr_reader :count

    # @param path [String]
    # @return [Integer] where batches begin; 0 where the file has none
    def self.start(path)
      File.binread(path, 8, PLACE).to_s.unpack1("Q<") || 0
    end

    # @param path [String]
    # @param write [Boolean] whether this process alone may write
    # @raise [InvalidInputError] when another process writes to the file
    def initialize(path, write:)
      @path = path
      @file = File.open(path, write ? "r+b" : "rb")
      @end = self.class.start(path)
      @count = 0
      return unless write && !@file.flock(File::LOCK_EX | File::LOCK_NB)

      @file.close
      raise InvalidInputError, "#{path} is open for writing elsewhere: an index has one writer at a time"
    end

    # Reads the batches that it has not read yet.
    #
    # @yieldparam operations [Array<Array>] as {#append} takes them
    # @return [void]
    def each
      while (payload = following)
        size = payload.unpack1("L<")
        operations = JSON.parse(payload.byteslice(4, size), symbolize_names: true)
        at = 4 + size
        operations.each do |operation|
          next unless operation[0] == "add" && operation[7]

          length = operation[7]
          operation[7] = payload.byteslice(at, length)
          at += length
        end
        yield operations
      end
    end

    # Writes one batch; when this returns, no crash takes it away.
    #
    # @param operations [Array<Array>] `["add", key, id, text, metadata, chunk, weights, vector]`, `["delete", key]` and
    #   `["settings", values]`; a vector is a packed String or nil
    # @return [void]
    def append(operations)
      vectors = operations.filter_map { |operation| operation[7] if operation[0] == "add" }
      text = JSON.generate(operations.map { |operation| without_vector(operation) })
      payload = [[text.bytesize].pack("L<"), text.b, *vectors.map(&:b)].join
      clear_rest
      @file.seek(@end)
      @file.write([MAGIC, @count, payload.bytesize, Zlib.crc32(payload), 0].pack("a8Q<Q<L<L<"), payload)
      @file.flush
      @file.fdatasync
      @end += HEADER + payload.bytesize
      @count += 1
    end

    # Notes that the file was renamed.
    #
    # @param path [String]
    # @return [self]
    def moved(path)
      @path = path
      File.open(File.dirname(path), &:fsync)
      self
    end

    # @return [Boolean] whether another file took the place of this one
    def replaced?
      here = File.stat(@path)
      own = @file.stat
      [here.dev, here.ino] != [own.dev, own.ino]
    end

    # @return [void]
    def close
      @file.close unless @file.closed?
    end

    private

    # The vector's place has its length; the vector itself follows.
    def without_vector(operation)
      operation[0] == "add" ? [*operation.first(7), operation[7]&.bytesize] : operation
    end

    # @return [String, nil] the next whole batch
    def following
      return if @end.zero?

      @file.seek(@end)
      header = @file.read(HEADER)
      return if header.nil? || header.bytesize < HEADER || !header.start_with?(MAGIC)

      number, length, checksum = header.unpack("x8Q<Q<L<")
      return if number != @count || length > @file.size - @end - HEADER

      payload = @file.read(length)
      return unless payload&.bytesize == length && Zlib.crc32(payload) == checksum

      @end += HEADER + length
      @count += 1
      payload
    end

    # A batch that was cut short is overwritten with zeros, so that nothing of it follows the next one. The file keeps
    # its length, since others may have it mapped.
    def clear_rest
      rest = @file.size - @end
      return unless rest.positive?

      @file.seek(@end)
      @file.write("\0" * rest)
    end
  end
end
