# frozen_string_literal: true

require "digest"
require "json"

module Candle
  # Texts and metadata of an {Index}, by the keys of its vectors.
  #
  # @api private
  class IndexDocuments
    # What is known of one document, or of one chunk of it.
    Entry = Struct.new(:key, :id, :text, :metadata, :part, :weights, :matrix)

    # The words that bm25s leaves out of English texts.
    ENGLISH = %w[a an and are as at be but by for if in into is it no not of on or such that the their then there these
                 they this to was will with].freeze
    # Between an id and the number of a chunk.
    SEPARATOR = "\u001f"
    private_constant :ENGLISH, :SEPARATOR

    # @return [Hash] how texts are scored and cut, as {Index.new} was told
    attr_reader :settings

    # @param settings [Hash] `method k1 b delta stopwords`
    def initialize(settings)
      @settings = settings
      @stopwords = stopwords(settings[:stopwords])
      @entries = []
      @numbers = {}
      @chunks = Hash.new { |hash, id| hash[id] = [] }
      @digests = Hash.new(0)
      @terms = nil
      @weighted = 0
    end

    # @return [Integer] how many there are
    def size
      @numbers.size
    end

    # @param id [Integer, String]
    # @param chunk [Integer, nil]
    # @return [Integer, String] what its vector is called
    def self.key(id, chunk)
      chunk ? "#{id}#{SEPARATOR}#{chunk}" : id
    end

    # @param key [Integer, String]
    # @return [Entry, nil]
    def [](key)
      number = @numbers[key]
      number && @entries[number]
    end

    # @param number [Integer]
    # @return [Entry, nil]
    def entry(number)
      @entries[number]
    end

    # @param id [Integer, String]
    # @return [Array<Integer, String>] the keys of its document, or of its chunks
    def keys(id)
      return @chunks[id].dup if @chunks.key?(id)

      @numbers.key?(id) ? [id] : []
    end

    # @return [Enumerator::Lazy<Entry>] in the order in which they were added
    def each
      @entries.lazy.reject(&:nil?)
    end

    # @param entry [Entry] with a key that is not there yet
    # @return [void]
    def add(entry)
      number = @entries.size
      @entries << entry
      @numbers[entry.key] = number
      @chunks[entry.id] << entry.key if entry.part
      @digests[digest(entry.text)] += 1 if entry.text
      index(number, entry) if @terms
      @weighted += 1 if entry.weights
    end

    # @param key [Integer, String]
    # @return [Entry, nil] what was there
    def remove(key)
      number = @numbers.delete(key) or return
      entry = @entries[number]
      @entries[number] = nil
      forget_chunk(entry)
      forget_text(entry.text)
      @weighted -= 1 if entry.weights
      return entry unless @terms

      @terms.remove(number, entry.text) if entry.text
      @terms.remove_weights(number) if entry.weights
      entry
    end

    # @param text [String]
    # @param id [Integer, String]
    # @return [Boolean] whether a document of another id has the same text
    def elsewhere?(text, id)
      @digests.fetch(digest(text), 0) > keys(id).count { |key| self[key].text == text }
    end

    # @param keys [Array<Integer, String>, nil] nil is all
    # @return [Array<Array(Object, Tensor)>] keys and the vectors of their tokens
    def matrices(keys)
      entries = keys ? keys.filter_map { |key| self[key] } : each
      entries.select(&:matrix).map { |entry| [entry.key, entry.matrix] }.to_a
    end

    # @return [Boolean] whether there are sparse vectors
    def weights?
      @weighted.positive?
    end

    # @param conditions [Hash{Symbol => Object}] by the names of metadata
    # @return [Array<Integer, String>] the keys of documents that fulfil all of them
    def keys_where(conditions)
      @numbers.each_key.select { |key| fulfils?(self[key].metadata, conditions) }
    end

    # @param keys [Enumerable<Integer, String>, nil] nil is all
    # @return [String, nil] a byte for each number
    def flags(keys)
      return if keys.nil?

      keys.each_with_object("\0" * @entries.size) do |key, flags|
        number = @numbers[key]
        flags.setbyte(number, 1) if number
      end
    end

    # @param text [String]
    # @param most [Integer]
    # @param keys [Array<Integer, String>, nil] those to search in
    # @return [Array<Array(Object, Float)>] keys and scores by BM25, best first
    def by_terms(text, most, keys)
      settings = @settings.values_at(:method, :k1, :b, :delta)
      with_keys(terms.search(text, most, flags(keys), settings))
    end

    # @param weights [Array<Array(Integer, Float)>]
    # @param most [Integer]
    # @param keys [Array<Integer, String>, nil]
    # @return [Array<Array(Object, Float)>] keys and dot products, best first
    def by_weights(weights, most, keys)
      with_keys(terms.search_weights(weights, most, flags(keys)))
    end

    private

    def with_keys(found)
      found.filter_map { |number, score| [@entries[number].key, score] if @entries[number] }
    end

    # Made when it is first asked for, since indexes that are only searched by vectors need none.
    def terms
      @terms ||= TermIndex.build(@stopwords).tap do |terms|
        texts = @entries.each_index.select { |number| @entries[number]&.text }
        texts.each_slice(1000) { |numbers| terms.add(numbers, numbers.map { |number| @entries[number].text }) }
        @entries.each_with_index { |entry, number| terms.add_weights(number, entry.weights) if entry&.weights }
      end
    end

    def index(number, entry)
      @terms.add([number], [entry.text]) if entry.text
      @terms.add_weights(number, entry.weights) if entry.weights
    end

    def forget_chunk(entry)
      return unless entry.part

      keys = @chunks[entry.id]
      keys.delete(entry.key)
      @chunks.delete(entry.id) if keys.empty?
    end

    def forget_text(text)
      return unless text

      digest = digest(text)
      @digests[digest] -= 1
      @digests.delete(digest) if @digests[digest] <= 0
    end

    def digest(text)
      Digest::SHA256.digest(text)[0, 16]
    end

    def stopwords(given)
      case given
      when "english" then ENGLISH
      when nil then []
      else given
      end
    end

    def fulfils?(metadata, conditions)
      conditions.all? { |name, condition| fulfilled?(metadata&.fetch(name, nil), condition) }
    end

    def fulfilled?(value, condition)
      case condition
      when Range then !value.nil? && condition.cover?(value)
      when Array then condition.include?(value)
      when Regexp then value.is_a?(String) && condition.match?(value)
      when Proc then condition.call(value)
      when Symbol then value == condition.to_s
      else value == condition
      end
    rescue ArgumentError, TypeError, NoMethodError
      false
    end
  end
end
