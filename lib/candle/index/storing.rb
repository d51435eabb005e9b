# frozen_string_literal: true

require "fileutils"

module Candle
  # How an index is written to its file, and read from it.
  class Index
    # So many changes are written at once, unless {#sync} is called before.
    SYNC_EVERY = 1000
    # And so many bytes of texts and vectors.
    SYNC_BYTES = 64 << 20
    private_constant :SYNC_EVERY, :SYNC_BYTES

    # Writes all of it to one file, without what was deleted. The file is the old or the new one, whole, whatever
    # happens meanwhile; indexes that have it open keep the old one. The file of an index that is open for writing is
    # written by {#compact}.
    #
    # @param path [String, Pathname]
    # @return [String] its absolute path
    # @raise [InvalidInputError] when it can't be written, with the reason, and when another index has it open for
    #   writing
    def save(path)
      target = File.expand_path(TextInput.path(path, "path"))
      @monitor.synchronize do
        next compact if @write && File.identical?(target, @path)

        IndexJournal.guard(target) { @documents ? replace(target, follow: false) : _save(target, false) }
      end
      target
    end

    # Appends what was added and deleted since the last call to the file of an index that was opened with `write: true`.
    # When it returns, the changes are on the disk: neither a killed process nor a crash of the machine takes them away,
    # and one in the middle of it takes that batch alone. Happens by itself after every 1000 changes or 64 MiB, and on
    # {#close}.
    #
    # @example
    #   require "tmpdir"
    #   path = File.join(Dir.tmpdir, "candle-sync.index")
    #   Candle::Index.new.add(1, "the quick fox").save(path)
    #   writer = Candle::Index.open(path, write: true)
    #   reader = Candle::Index.open(path)
    #   writer.add(2, "the lazy dog").sync
    #   reader.refresh.size # => 2
    #   writer.close
    #
    # @return [self]
    # @raise [InvalidInputError] for an index that isn't open for writing, and when its file was replaced or removed
    def sync
      writing
      @monitor.synchronize do
        next if @pending.empty?

        if @journal.end.zero? || (@settings.late_model && @token_dimension.nil?)
          compact
        else
          @journal.append(@pending)
          written
        end
      end
      self
    end

    # Rewrites the file of an index that was opened with `write: true`, without what was deleted and replaced. The
    # file is the old or the new one, whole; processes that have it open keep the old one until they {#refresh}.
    #
    # @return [self]
    # @raise [InvalidInputError] for an index that isn't open for writing, and when its file can't be written, or was
    #   replaced or removed
    def compact
      writing
      @monitor.synchronize do
        @journal.check
        journal = replace(@path, follow: true)
        @journal.close
        @journal = journal
        written
      end
      self
    end

    # Reads what another process wrote to the file since this index was opened or refreshed.
    #
    # @return [self]
    # @raise [InvalidInputError] when the file is gone
    def refresh
      @monitor.synchronize do
        next if @journal.nil? || @write
        next read_batches unless @journal.replaced?

        journal = IndexJournal.open(@path, write: false) { _reload(@path) }
        @journal.close
        @journal = journal
        @textual = false
        @token_dimension = nil
        @documents = @settings.models? ? IndexDocuments.new(@settings.bm25) : nil
        read_batches
      end
      self
    end

    # Writes what was not written yet, and lets others write to the file. What was read stays usable.
    #
    # @return [nil]
    # @raise [InvalidInputError] when there was something to write and the file was replaced or removed
    def close
      return if @journal.nil?

      @monitor.synchronize do
        sync if @write
        release
      rescue InvalidInputError
        release unless @journal.writable?
        raise
      end
      nil
    end

    # Reads what follows the vectors in the file.
    #
    # @param path [String]
    # @param journal [IndexJournal] of the file that the vectors were read from
    # @param write [Boolean]
    # @return [self]
    # @api private
    def follow(path, journal, write:)
      @path = path
      @journal = journal
      read_batches
      @write = write
      self
    end

    private

    def writing
      return if @write

      raise InvalidInputError, "this index isn't open for writing: use Candle::Index.open(path, write: true)"
    end

    def release
      @journal.close
      @journal = nil
      @write = false
    end

    # Notes a change for the file. It is written by {#settle}, so that a batch has all changes of a call or none.
    def note(operation)
      return unless @write

      @pending << operation
      @pending_bytes += bytes_of(operation)
    end

    def settle
      sync if @pending.size >= SYNC_EVERY || @pending_bytes >= SYNC_BYTES
    end

    def written
      @pending = []
      @pending_bytes = 0
    end

    # Of its text and its vectors.
    def bytes_of(operation)
      operation[0] == "add" ? operation.values_at(3, 7).compact.sum(&:bytesize) : 0
    end

    def read_batches
      @journal.each { |operations| operations.each { |operation| replay(operation) } }
    end

    def replay(operation)
      case operation[0]
      when "add" then replay_addition(operation)
      when "delete"
        @documents&.remove(operation[1])
        _delete(operation[1])
      else
        values = operation[1]
        @textual = values[:textual]
        @token_dimension = values[:token_dimension]
        check_tokens
        restore_pruning(values)
        @settings = @settings.with_bm25(values[:bm25])
        @documents = IndexDocuments.new(@settings.bm25)
      end
    end

    def replay_addition(operation)
      _, key, id, text, metadata, chunk, weights, vector = operation
      matrix = matrix_of(vector) if @token_dimension && vector
      _add([key], [vector]) if vector && !matrix
      item = Item.new(key, id, text, metadata, chunk, nil, weights, matrix)
      restore_encoding(item) if matrix && @pruning
      document(item)
    end

    # The texts of the file's beginning have their vectors there; those that were appended get theirs again.
    def restore_encoding(item)
      return encode(item) if @encoded.zero?

      @encoded -= 1
    end

    def restore_pruning(values)
      return prune(nil) unless values[:pruning]

      prune(Pruning.restore(values[:pruning], @token_dimension, _facts[0]))
      @encoded = Integer === values[:encoded] ? [values[:encoded], 0].max : 0
    end

    # One vector per token, in an index of such texts.
    def matrix_of(packed)
      Tensor.from_packed(packed, [packed.bytesize / 4 / @token_dimension, @token_dimension], :f32)
    end

    def check_tokens
      made = @settings.late_model&.dimension
      return if made.nil? || @token_dimension.nil? || made == @token_dimension

      raise InvalidInputError, "the index has vectors of #{@token_dimension} numbers for tokens, and the model makes " \
                               "#{made}: pass the model that the index was made with"
    end

    # @param follow [Boolean] whether this process goes on to write to the new file
    # @return [IndexJournal] the journal of the new file, which nobody else writes to
    def replace(target, follow:)
      target = regular(target)
      remove_drafts(target)
      draft = "#{target}.#{Process.pid}.#{object_id}.part"
      # A container that is started again may have the process number of before.
      FileUtils.rm_f(draft)
      journal = drafted(draft, target)
      # Nobody knows the draft yet. Once it has its name, others may open it for writing.
      follow ? @journal.check : journal.close
      File.rename(draft, target)
      placed = journal.moved(target)
    rescue SystemCallError => e
      raise InvalidInputError, "#{target} can't be written: #{e.message}"
    ensure
      journal&.close unless placed
      FileUtils.rm_f(draft) if draft
    end

    # Where a link leads.
    def regular(target)
      target = File.realdirpath(target) if File.symlink?(target)
      raise InvalidInputError, "#{target} is a directory" if File.directory?(target)
      raise InvalidInputError, "#{target} is not a regular file" if File.exist?(target) && !File.file?(target)

      target
    end

    # What processes left that were killed while they wrote.
    def remove_drafts(target)
      folder, name = File.split(target)
      pattern = /\A#{Regexp.escape(name)}\.(\d+)\.\d+\.part/
      Dir.children(folder).each do |file|
        process = file[pattern, 1]&.to_i or next
        FileUtils.rm_f(File.join(folder, file)) unless alive?(process)
      end
    end

    def alive?(process)
      Process.kill(0, process)
      true
    rescue Errno::ESRCH
      false
    rescue SystemCallError
      true
    end

    def pruned(entries)
      @pruning ? { pruning: @pruning.to_h, encoded: entries.count(&:matrix) } : {}
    end

    # Vectors first, then all texts. Nobody else reads them before the file has the mode and owner of the one before.
    def drafted(path, target)
      File.open(path, File::WRONLY | File::CREAT | File::EXCL, 0o600, &:close) if File.file?(target)
      _save(path, true)
      journal = IndexJournal.new(path, write: true)
      @token_dimension ||= @settings.late_model&.dimension
      entries = @documents ? @documents.each : []
      journal.append([["settings", { textual: @textual ? true : false, bm25: @settings.bm25,
                                     token_dimension: @token_dimension, **pruned(entries) }]])
      additions = entries.lazy.map { |entry| ["add", *entry.to_a.first(6), entry.matrix&.to_packed] }
      slices(additions).each { |slice| journal.append(slice) }
      take_after(target, path) if File.file?(target)
      journal
    end

    # As many additions at once as a batch may have.
    def slices(additions)
      bytes = count = 0
      additions.slice_before do |addition|
        bytes += bytes_of(addition)
        count += 1
        next false if count == 1 || (count <= SYNC_EVERY && bytes <= SYNC_BYTES)

        bytes = bytes_of(addition)
        count = 1
        true
      end
    end

    # Only the superuser gives files away. Where the group can't be kept, its rights are those of everybody.
    def take_after(target, draft)
      old = File.stat(target)
      mode = old.mode & 0o7777
      [[old.uid, nil], [nil, old.gid]].each do |owner|
        File.chown(*owner, draft)
      rescue Errno::EPERM
        mode = (mode & 0o707) | ((mode & 0o007) << 3) if owner.last
      end
      File.chmod(mode, draft)
    end
  end
end
