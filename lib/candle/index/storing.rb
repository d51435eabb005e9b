# frozen_string_literal: true

require "fileutils"

module Candle
  # How an index is written to its file, and read from it.
  class Index
    # So many changes are written at once, unless {#sync} is called before.
    SYNC_EVERY = 1000
    private_constant :SYNC_EVERY

    # Writes all of it to one file, without what was deleted. The file is the old or the new one, whole, whatever
    # happens meanwhile; indexes that have it open keep the old one.
    #
    # @param path [String, Pathname]
    # @return [String] its absolute path
    # @raise [InvalidInputError] when it can't be written, with the reason
    def save(path)
      target = File.expand_path(TextInput.path(path, "path"))
      @monitor.synchronize { @documents ? replace(target)&.close : _save(target, false) }
      target
    end

    # Appends what was added and deleted since the last call to the file of an index that was opened with `write: true`.
    # When it returns, the changes are on the disk: neither a killed process nor a crash of the machine takes them away,
    # and one in the middle of it takes that batch alone. Happens by itself after every 1000 changes, and on {#close}.
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
    # @raise [InvalidInputError] for an index that isn't open for writing
    def sync
      writing
      @monitor.synchronize do
        next if @pending.empty?

        if @journal.end.zero? || (@settings.late_model && @token_dimension.nil?)
          compact
        else
          @journal.append(@pending)
          @pending = []
        end
      end
      self
    end

    # Writes the file of an index that was opened with `write: true` anew, without what was deleted and replaced. The
    # file is the old or the new one, whole; processes that have it open keep the old one until they {#refresh}.
    #
    # @return [self]
    # @raise [InvalidInputError] for an index that isn't open for writing, and when it can't be written
    def compact
      writing
      @monitor.synchronize do
        journal = replace(@path)
        @journal.close
        @journal = journal
        @pending = []
      end
      self
    end

    # Reads what another process wrote to the file since this index was opened or refreshed.
    #
    # @return [self]
    def refresh
      @monitor.synchronize do
        next if @journal.nil? || @write
        next read_batches unless @journal.replaced?

        @journal.close
        _reload(@path)
        @documents = @settings.models? ? IndexDocuments.new(@settings.bm25) : nil
        @journal = IndexJournal.new(@path, write: false)
        read_batches
      end
      self
    end

    # Writes what was not written yet, and lets others write to the file. What was read stays usable.
    #
    # @return [nil]
    def close
      return if @journal.nil?

      @monitor.synchronize do
        sync if @write
        @journal.close
        @journal = nil
        @write = false
      end
      nil
    end

    # Reads what follows the vectors in the file.
    #
    # @param path [String]
    # @param write [Boolean]
    # @return [self]
    # @api private
    def follow(path, write:)
      return self unless write || IndexJournal.start(path).positive?

      journal = IndexJournal.new(path, write: write)
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

    # Notes a change for the file.
    def note(operation)
      return unless @write

      @pending << operation
      sync if @pending.size >= SYNC_EVERY
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
        restore_pruning(values)
        @settings = @settings.with_bm25(values[:bm25])
        @documents = IndexDocuments.new(@settings.bm25)
      end
    end

    def replay_addition(operation)
      _, key, id, text, metadata, chunk, weights, vector = operation
      matrix = matrix_of(vector) if vector && @token_dimension
      _add([key], [vector]) if vector && !matrix
      @documents&.remove(key)
      return unless text || metadata

      item = Item.new(key, id, text, metadata, chunk, nil, weights, matrix)
      restore_encoding(item) if matrix && @pruning
      document(item)
    end

    # The texts of the file's beginning have their vectors there; those that were appended get theirs anew.
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

    # @return [IndexJournal] the journal of the new file, which nobody else writes to
    def replace(target)
      target = File.realpath(target) if File.symlink?(target)
      raise InvalidInputError, "#{target} is a directory" if File.directory?(target)

      remove_drafts(target)
      draft = "#{target}.#{Process.pid}.#{object_id}.part"
      journal = drafted(draft)
      File.chmod(File.stat(target).mode & 0o7777, draft) if File.file?(target)
      File.rename(draft, target)
      journal.moved(target)
    rescue SystemCallError => e
      raise InvalidInputError, "#{target} can't be written: #{e.message}"
    ensure
      FileUtils.rm_f(draft) if draft
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

    # Vectors first, then all texts.
    def drafted(path)
      _save(path, true)
      journal = IndexJournal.new(path, write: true)
      @token_dimension ||= @settings.late_model&.dimension
      entries = @documents ? @documents.each : []
      journal.append([["settings", { textual: @textual ? true : false, bm25: @settings.bm25,
                                     token_dimension: @token_dimension, **pruned(entries) }]])
      entries.each_slice(SYNC_EVERY) do |slice|
        journal.append(slice.map { |entry| ["add", *entry.to_a.first(6), entry.matrix&.to_packed] })
      end
      journal
    end
  end
end
