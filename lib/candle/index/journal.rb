# frozen_string_literal: true

require "json"
require "zlib"

module Candle
  # What follows the vectors in the file of an {Index}: batches of what was added and deleted, each with a checksum. A
  # batch that was cut short ends the file; the next writer puts the next one in its place.
  #
  # A writer has the file locked. A file is replaced as a whole, so that its name may soon mean another one: a process
  # that opens it by its name looks afterwards whether it still means the same.
  #
  # @api private
  class IndexJournal
    # Begins every batch; its number, length and checksum follow.
    MAGIC = "RCBATCH1"
    HEADER = 32
    # Where the file says where its vectors end.
    PLACE = 48
    # How often a file is opened again that was replaced meanwhile.
    ATTEMPTS = 100
    # So many zeros are written at once.
    ZEROS = 1 << 20
    private_constant :MAGIC, :HEADER, :PLACE, :ATTEMPTS, :ZEROS

    # @return [Integer] where the last whole batch ends; 0 where the file has no batches
    attr_reader :end
    # @return [Integer] how many batches there are
    attr_reader :count

    class << self
      # Opens the file that a path names, and locks it for writing. What the block reads from the path is of that file.
      #
      # @param path [String]
      # @param write [Boolean] whether this process alone may write
      # @yield reads from the path; again, if the file was replaced meanwhile
      # @return [IndexJournal]
      # @raise [InvalidInputError] when there is no such file, and when another process writes to it
      # @raise [ModelNotFoundError] when it can't be read
      def open(path, write:)
        ATTEMPTS.times do
          whole = false
          journal = new(path, write: write)
          next if journal.replaced?

          yield
          whole = !journal.replaced?
          return journal if whole
        ensure
          journal&.close unless whole
        end
        raise InvalidInputError, "#{path} is replaced again and again: try later"
      end

      # Lets nobody open the file for writing until the block has ended.
      #
      # @param path [String]
      # @yieldreturn [Object] what this returns
      # @raise [InvalidInputError] when another process writes to it
      def guard(path)
        file = shared(path)
        yield
      ensure
        # Closing alone would not do: a forked child may share the open file.
        file&.flock(File::LOCK_UN)
        file&.close
      end

      # @param file [File]
      # @param path [String]
      # @return [Boolean] whether the path names this file
      def same?(file, path)
        here = File.stat(path)
        own = file.stat
        [here.dev, here.ino] == [own.dev, own.ino]
      rescue Errno::ENOENT, Errno::ENOTDIR
        false
      end

      # @param path [String]
      # @raise [InvalidInputError]
      def refuse(path)
        raise InvalidInputError, "#{path} is open for writing elsewhere: an index has one writer at a time"
      end

      private

      # What isn't a regular file, can't be read, or has no locks is left to what writes it.
      def shared(path)
        ATTEMPTS.times do
          return unless File.file?(path)

          file = File.open(path, File::RDONLY | File::NONBLOCK | File::BINARY)
          locked = file.flock(File::LOCK_SH | File::LOCK_NB)
          current = same?(file, path)
          return file if locked && current

          file.close
          refuse(path) if current
        end
      rescue SystemCallError
        nil
      end
    end

    # @param path [String]
    # @param write [Boolean] whether this process alone may write
    # @raise [InvalidInputError] when there is no such file, it can't be written, or another process writes to it
    # @raise [ModelNotFoundError] when it can't be read
    def initialize(path, write:)
      @path = path
      @write = write
      @process = Process.pid
      @file = opened
      @end = read(PLACE, 8).unpack1("Q<") || 0
      @count = 0
      return if !write || @file.flock(File::LOCK_EX | File::LOCK_NB) || replaced?

      @file.close
      self.class.refuse(path)
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
    # @raise [InvalidInputError] when it went to a file that others no longer find
    def append(operations)
      check
      vectors = operations.filter_map { |operation| operation[7] if operation[0] == "add" }
      text = JSON.generate(operations.map { |operation| without_vector(operation) })
      payload = [[text.bytesize].pack("L<"), text.b, *vectors.map(&:b)].join
      clear_rest
      @file.seek(@end)
      @file.write([MAGIC, @count, payload.bytesize, Zlib.crc32(payload), 0].pack("a8Q<Q<L<L<"), payload)
      @file.flush
      @file.fdatasync
      check
      @end += HEADER + payload.bytesize
      @count += 1
    end

    # @return [void]
    # @raise [InvalidInputError] when this process may not write to the file, or others no longer find it
    def check
      unless @process == Process.pid
        raise InvalidInputError, "#{@path} was opened for writing before this process was forked: open it again"
      end
      return unless replaced?

      raise InvalidInputError, "#{@path} was replaced or removed while it was open for writing: open it again and " \
                               "add what was not synced"
    end

    # @return [Boolean] whether {#check} finds nothing wrong
    def writable?
      @process == Process.pid && !replaced?
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

    # @return [Boolean] whether the path names another file, or none
    def replaced?
      !self.class.same?(@file, @path)
    end

    # Lets others write to the file.
    #
    # @return [void]
    def close
      return if @file.closed?

      # A forked child must not take the lock from its parent; a child that shares the file must not keep it.
      @file.flock(File::LOCK_UN) if @write && @process == Process.pid
      @file.close
    end

    private

    def opened
      raise InvalidInputError, "there is no index #{@path}: make one with Candle::Index.new and save it" unless
        File.file?(@path)

      File.open(@path, @write ? "r+b" : "rb")
    rescue SystemCallError => e
      raise InvalidInputError, "#{@path} can't be written: #{e.message}" if @write

      raise ModelNotFoundError, "#{@path} cannot be read (#{e.message}): check the path and its permissions"
    end

    # @return [String] of this length, or shorter where the file ends. A forked process reads the same open file, so
    #   that its position must not matter
    def read(place, length)
      bytes = "".b
      bytes << @file.pread(length - bytes.bytesize, place + bytes.bytesize) while bytes.bytesize < length
      bytes
    rescue EOFError
      bytes
    end

    # The vector's place has its length; the vector itself follows.
    def without_vector(operation)
      operation[0] == "add" ? [*operation.first(7), operation[7]&.bytesize] : operation
    end

    # @return [String, nil] the next whole batch
    def following
      return if @end.zero?

      header = read(@end, HEADER)
      return if header.bytesize < HEADER || !header.start_with?(MAGIC)

      number, length, checksum = header.unpack("x8Q<Q<L<")
      return if number != @count || length > @file.size - @end - HEADER

      payload = read(@end + HEADER, length)
      return unless payload.bytesize == length && Zlib.crc32(payload) == checksum

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
      rest.step(1, -ZEROS) { |left| @file.write("\0" * [left, ZEROS].min) }
    end
  end
end
