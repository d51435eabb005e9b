# frozen_string_literal: true

Candle::Native.complete(:Index)

module Candle
  # Vectors by id, for those without a database: exact search by cosine over rows of f32, of bytes or of bits, by the
  # processor's vectors and all threads, and after {#build_graph} approximate search that compares few of them. A saved
  # index is one file, which is mapped when it is opened: it takes no memory of its own, and processes share it. Any
  # number of threads may use one index.
  #
  # @example
  #   index = Candle::Index.new(dimension: 2)
  #   index.add("north", [0.0, 1.0])
  #   index.add("east", [1.0, 0.0])
  #   index.search([0.1, 0.9], top_k: 1) # => [{:id=>"north", :score=>0.99...}]
  #   index.search([0.1, 0.9]) { |id| id != "north" }.first[:id] # => "east"
  class Index
    include Uncopyable

    # How rows are stored: little-endian floats; signed bytes, a quarter of that; or one bit per component.
    DTYPES = %i[f32 int8 binary].freeze

    # Vectors that are passed to the engine at once.
    BATCH = 1024
    # How many more than wanted are looked at first, when a block chooses.
    SLACK = 4
    # The default `ef` of a search, and of building a graph.
    EF_SEARCH = 64
    EF_CONSTRUCTION = 128
    private_constant :BATCH, :SLACK, :EF_SEARCH, :EF_CONSTRUCTION

    class << self
      # @param dimension [Integer] how many components vectors have
      # @param dtype [Symbol] one of {DTYPES}
      # @return [Index]
      # @raise [ArgumentError] for another type, or for what isn't a positive Integer
      # @raise [InvalidInputError] for more components than 65,536
      def new(dimension:, dtype: :f32)
        dimension = Arguments.count(dimension, "dimension") || raise(ArgumentError, "dimension is missing")
        _build(dimension, Arguments.choice(dtype, "dtype", DTYPES).to_s)
      end

      # Maps a file that {#save} wrote.
      #
      # @param path [String, Pathname]
      # @return [Index]
      # @raise [InvalidInputError] when there is no such file
      # @raise [CorruptModelError] when it is not a whole index, with the reason
      def open(path)
        _open(File.expand_path(TextInput.path(path, "path")))
      end
    end

    # Adds a vector, or puts it in place of the one that has the id.
    #
    # @param id [Integer, String] of 64 bits at most
    # @param vector [Array<Numeric>, String, Tensor] a String is packed f32, as `embed(as: :packed)` makes it, or a row
    #   of the index's own type (`as: :int8`, `as: :binary`)
    # @return [self]
    # @raise [InvalidInputError] for a vector of another size or with what isn't a finite number
    def add(id, vector)
      _add([key(id)], [packed(vector)])
      self
    end

    # Adds many vectors.
    #
    # @example
    #   index = Candle::Index.new(dimension: 2, dtype: :int8)
    #   index.add_all({ 1 => [0.5, 0.5], 2 => [1.0, 0.0] }).size # => 2
    #
    # @param pairs [Enumerable<Array(id, vector)>] each as {#add} takes them; a Hash is one
    # @return [self]
    # @raise [InvalidInputError] as {#add}; the vectors before it are in the index then
    def add_all(pairs)
      raise ArgumentError, "pairs must be an Enumerable of ids and vectors" unless Enumerable === pairs

      pairs.each_slice(BATCH) do |slice|
        ids, vectors = slice.map { |id, vector| [key(id), packed(vector)] }.transpose
        _add(ids, vectors)
      end
      self
    end

    alias []= add

    # @param id [Integer, String]
    # @return [Boolean] whether there was such a vector
    def delete(id)
      _delete(key(id))
    end

    # @param id [Integer, String]
    # @return [Boolean]
    def include?(id)
      _contains(key(id))
    end

    # Builds an HNSW graph of links between near vectors, with which {#search} finds nearly all of the nearest while it
    # compares few. Vectors that are added later are compared one by one until the next call adds them to the graph; so
    # are the last ones, fewer than 256. The same vectors in the same order give the same graph, with any number of
    # threads. Other threads may search and change the index meanwhile. After an interrupt the next call continues.
    #
    # @example
    #   random = Random.new(1)
    #   index = Candle::Index.new(dimension: 3)
    #   index.add_all((0...2560).map { |id| [id, Array.new(3) { random.rand(-1.0..1.0) }] })
    #   index.build_graph.graph # => {:links=>16, :size=>2560}
    #   index.search([1.0, 0.5, 0.0], ef: 50) == index.search([1.0, 0.5, 0.0], exact: true) # => true
    #
    # @param links [Integer] how many others a vector is linked with, 2 to 256: more find more, and take more memory (8
    #   bytes each and vector) and time. Another number than before rebuilds the graph
    # @param ef [Integer, nil] `ef_construction`: how many candidates are compared for a vector's links; nil is 128.
    #   More find more, and take longer to build
    # @param effort [Integer, nil] the same as `ef:`
    # @param progress [Boolean, #call] true shows a bar on a terminal; a Proc gets `(done, total)`
    # @return [self]
    # @raise [InvalidInputError] for fewer or more links
    def build_graph(links: 16, ef: nil, effort: nil, progress: false)
      links = Arguments.count(links, "links") || raise(ArgumentError, "links is missing")
      ef = candidates(ef, effort) || EF_CONSTRUCTION
      report = Progress.for(progress)
      _start_graph(links)
      loop do
        more = _grow_graph(ef)
        break unless more

        report&.call(graph[:size], size)
      end
      self
    end

    # @return [Hash, nil] `{links:, size:}`: how many others a vector is linked with, and how many vectors the graph
    #   has, deleted ones too; nil without one
    def graph
      links, rows = _facts[3]
      links && { links: links, size: rows }
    end

    # The vectors with the greatest cosine. With rows of bytes it is that of what they hold, and with bits the share of
    # components whose signs agree, from -1 to 1.
    #
    # All vectors are compared, unless there is a graph ({#build_graph}): then it is searched if that compares fewer,
    # which is not so if `among` leaves few or nearly all are wanted.
    #
    # @example
    #   index = Candle::Index.new(dimension: 2)
    #   index.add_all(1 => [0.0, 1.0], 2 => [1.0, 0.0], 3 => [0.7, 0.7])
    #   index.search([1.0, 0.1], top_k: 2).map { |found| found[:id] } # => [2, 3]
    #   index.search([1.0, 0.1], among: [1, 3]).map { |found| found[:id] } # => [3, 1]
    #
    # @param vector [Array<Numeric>, String, Tensor] as {#add} takes it
    # @param top_k [Integer, nil] how many to return; nil is all
    # @param among [Enumerable<Integer, String>, nil] the ids to search in; nil is all. Faster than a block where most
    #   are left out
    # @param ef [Integer, nil] `ef_search`: how many candidates the search of a graph keeps, at least `top_k`; nil is
    #   64. More find more, and take longer
    # @param effort [Integer, nil] the same as `ef:`
    # @param exact [Boolean] whether to compare all vectors in any case
    # @yieldparam id [Integer, String] an id that might be returned, best first
    # @yieldreturn [Boolean] whether to return it
    # @return [Array<Hash>] `{id:, score:}`, best first
    # @raise [InvalidInputError] for a vector of another size or with what isn't a finite number
    def search(vector, top_k: 10, among: nil, ef: nil, effort: nil, exact: false, &filter)
      most = Arguments.count(top_k, "top_k") || size
      ef = candidates(ef, effort) || EF_SEARCH
      ef = nil if exact
      vector = packed(vector)
      among = ids(among)
      found = filter ? filtered(vector, most, among, ef, &filter) : _search(vector, most, among, ef)
      found.map { |id, score| { id: id, score: score } }
    end

    # Writes all of it to one file, without what was deleted. The file is the old or the new one, whole, whatever
    # happens meanwhile; indexes that have it open keep the old one.
    #
    # @param path [String, Pathname]
    # @return [String] its absolute path
    # @raise [InvalidInputError] when it can't be written, with the reason
    def save(path)
      File.expand_path(TextInput.path(path, "path")).tap { |target| _save(target) }
    end

    # @return [Integer] how many vectors there are
    def size
      _facts[2]
    end

    alias length size

    # @return [Boolean]
    def empty?
      size.zero?
    end

    # @return [Integer] how many components a vector has
    def dimension
      _facts[0]
    end

    # @return [Symbol] one of {DTYPES}
    def dtype
      _facts[1]
    end

    # @return [String] one line
    def inspect
      "#<Candle::Index #{size} vectors of #{dimension} #{dtype}>"
    end

    alias to_s inspect

    private

    # `effort:` is the older name of `ef:`.
    def candidates(ef, effort)
      return Arguments.count(ef, "ef") if NilClass === effort
      raise ArgumentError, "ef and effort are two names of one option: pass one" unless NilClass === ef

      Arguments.count(effort, "effort")
    end

    # Asks for more until enough of them pass, so that the block sees few of a million. A longer search may find better
    # ones than a shorter one did.
    def filtered(vector, most, among, ef)
      answers = {}
      wanted = most
      total = size
      loop do
        wanted = [wanted * SLACK, total].min
        found = _search(vector, wanted, among, ef)
        passed = found.lazy.select { |id, _| answers.fetch(id) { answers[id] = yield(id) } }.first(most)
        return passed if passed.size == most || found.size < wanted || wanted == total
      end
    end

    def ids(among)
      case among
      when nil then nil
      when Enumerable then among.map { |id| key(id) }
      else raise ArgumentError, "among must be an Enumerable of ids, not #{Arguments.shown(among)}"
      end
    end

    def key(id)
      return id if Integer === id
      return TextInput.utf8(id, "id") if String === id

      raise ArgumentError, "an id must be an Integer or a String, not #{Arguments.shown(id)}"
    end

    # Packed floats are binary, or invalid as text, or contain zeros.
    def text?(string)
      string.encoding != Encoding::BINARY && string.valid_encoding? && !string.b.include?("\0")
    end

    def text_given(text)
      "#{Arguments.shown(text)} is a text, and an index holds vectors: pass model.embed(text), or search with " \
        "model.search(text, index)"
    end

    def packed(vector)
      case vector
      when String then text?(vector) ? raise(InvalidInputError, text_given(vector)) : vector
      when Tensor then vector.flatten_all.to_dtype(:f32).to_packed
      when Array then vector.pack("e*")
      else raise ArgumentError, "a vector must be an Array, a packed String or a Tensor, not #{Arguments.shown(vector)}"
      end
    rescue TypeError
      wrong = vector.find { |number| !(Numeric === number) }
      raise InvalidInputError, "a vector must have numbers only, not #{Arguments.shown(wrong)}"
    end
  end
end
