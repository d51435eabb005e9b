# frozen_string_literal: true

require "fileutils"
require "json"
require "securerandom"
require "tmpdir"

module Candle
  class Server
    # What a server keeps in a folder: files that clients upload, what batches write, batches and responses. Every
    # record is a JSON file that is replaced as a whole, so that several processes can share the folder, and a crash
    # leaves the record before or after it.
    #
    # Without a folder of the operator's, a temporary one is made by the first request that needs it and removed when
    # the process ends.
    #
    # @api private
    class Storage
      # A name that a client may say; nothing else becomes part of a path.
      NAME = /\A[a-z]+[-_][0-9a-f]{24,32}\z/
      private_constant :NAME

      # @param path [String, nil] the folder of the operator
      # @param limits [Limits]
      def initialize(path, limits)
        @given = path && File.expand_path(path)
        @limits = limits
        @process = Process.pid
        @mutex = Mutex.new
        FileUtils.mkdir_p(@given) if @given
      end

      # @return [Boolean] whether the folder outlives the process
      def lasting?
        !@given.nil?
      end

      # @return [Boolean] whether anything may be there
      def used?
        !(@given || @temporary).nil?
      end

      # @param kind [String] `files`, `batches` or `responses`
      # @param record [Hash] with its `id`
      # @return [Hash] the record
      def write(kind, record)
        target = place(kind, record.fetch(:id), "json")
        draft = "#{target}.#{Process.pid}.#{Thread.current.object_id}"
        File.write(draft, JSON.generate(record))
        File.rename(draft, target)
        record
      end

      # @return [Hash{Symbol => Object}, nil] the record, unless it is unknown or expired
      def read(kind, id)
        return unless used? && id.is_a?(String) && id.match?(NAME)

        record = JSON.parse(File.read(place(kind, id, "json")), symbolize_names: true)
        return record unless record[:expires_at] && kind != "batches" && record[:expires_at] <= Time.now.to_i

        delete(kind, id)
        nil
      rescue Errno::ENOENT
        nil
      end

      # @return [Array<Hash>] every record, the oldest first
      def list(kind)
        return [] unless used?

        ids = Dir.children(folder(kind)).filter_map { |name| name.delete_suffix(".json") if name.end_with?(".json") }
        ids.filter_map { |id| read(kind, id) }.sort_by { |record| [record[:created_at], record[:id]] }
      end

      # @return [void]
      def delete(kind, id)
        Dir.glob(place(kind, id, "*")).each { |path| FileUtils.rm_f(path) }
      end

      # @param ending [String] what the file is for
      # @return [String] a file beside a record
      def place(kind, id, ending)
        raise ArgumentError, "not the name of a record: #{id.inspect}" unless id.match?(NAME)

        File.join(folder(kind), "#{id}.#{ending}")
      end

      # Adds a file.
      #
      # @param record [Hash] what is known of it
      # @yieldparam path [String] where its bytes are to be written
      # @return [Hash] its record
      # @raise [Problem] 413 when there are too many already
      def add_file(record)
        check_count
        path = place("files", record.fetch(:id), "data")
        yield path
        write("files", record.merge(bytes: File.size(path)))
      rescue StandardError
        FileUtils.rm_f(path) if path
        raise
      end

      # @return [Integer] bytes that may still be written
      def room
        @limits.storage_bytes - Dir.glob(File.join(folder("files"), "*.data")).sum { |path| File.size?(path).to_i }
      end

      # @param prefix [String] such as `"file-"`
      # @return [String] a name that nothing has yet
      def name(prefix)
        "#{prefix}#{SecureRandom.hex(12)}"
      end

      private

      def check_count
        return if list("files").size < @limits.files

        raise Problem.new(413, "too_many_files", "the server keeps #{@limits.files} files: delete some first")
      end

      def folder(kind)
        path = File.join(root, kind)
        FileUtils.mkdir_p(path)
        path
      end

      def root
        return @given if @given

        if Process.pid != @process
          raise Problem.new(501, "no_storage", "with several processes files need a folder that they share: start " \
                                               "the server with --storage")
        end
        @mutex.synchronize { @temporary ||= temporary }
      end

      def temporary
        path = Dir.mktmpdir("candle-server")
        owner = Process.pid
        at_exit { FileUtils.rm_rf(path) if Process.pid == owner }
        path
      end
    end
  end
end
