# frozen_string_literal: true

require "monitor"

Candle::Native.complete(:Index)

module Candle
  # Vectors and texts by id, for those without a database: exact search by cosine, dot product or distance over rows of
  # f32, of bytes or of bits, by the processor's vectors and all threads, and after {#build_graph} approximate search
  # that compares few of them; BM25 over the words of texts, sparse vectors, and all of them together. A saved index is
  # one file, whose vectors are mapped when it is opened: they take no memory of their own, and processes share them.
  # Any number of threads may use one index.
  #
  # @example
  #   index = Candle::Index.new(dimension: 2)
  #   index.add("north", [0.0, 1.0])
  #   index.add("east", [1.0, 0.0])
  #   index.search([0.1, 0.9], top_k: 1) # => [{:id=>"north", :score=>0.99...}]
  #   index.search([0.1, 0.9]) { |id| id != "north" }.first[:id] # => "east"
  # @example
  #   index = Candle::Index.new(model: "spec/fixtures/tiny/bert-sentence")
  #   index.add(1, "the quick fox", lang: "en", year: 2021).add(2, "the lazy dog", lang: "en", year: 2024)
  #   index.search("lazy dog", mode: :hybrid, top_k: 1).first[:text] # => "the lazy dog"
  #   index.search("fox", mode: :bm25, where: { year: 2020..2022 }).map { |hit| hit[:id] } # => [1]
  class Index
    include Uncopyable

    # How rows are stored: little-endian floats; signed bytes, a quarter of that; or one bit per component.
    DTYPES = %i[f32 int8 binary].freeze
    # What vectors are compared by. Scores of distances are negative, so that greater ones are nearer.
    SIMILARITIES = %i[cosine dot euclidean manhattan].freeze
    # What the best of rows of bits are compared by once more.
    RESCORES = %i[f32 int8].freeze

    # Vectors that are passed to the engine at once.
    BATCH = 1024
    # How many more than wanted are looked at first, when a block chooses.
    SLACK = 4
    # The default `ef` of a search, and of building a graph.
    EF_SEARCH = 64
    EF_CONSTRUCTION = 128
    private_constant :BATCH, :SLACK, :EF_SEARCH, :EF_CONSTRUCTION

    class << self
      # An index of vectors where only `dimension` is given, of texts by their words where neither that nor a model is.
      #
      # @param dimension [Integer, nil] how many components vectors have; nil is what the model gives
      # @param dtype [Symbol] one of {DTYPES}
      # @param model [EmbeddingModel, SparseEmbeddingModel, LateInteractionModel, String, Pathname, nil] what embeds
      #   texts, or where to load it from. A late-interaction model gives a text one vector per token, and texts are
      #   compared by MaxSim, all of them unless there is `pruning:`
      # @param sparse_model [SparseEmbeddingModel, String, Pathname, nil] what makes sparse vectors of texts as well
      # @param splitter [TextSplitter, nil] cuts texts into chunks, which are found one by one
      # @param late_chunking [Boolean] whether chunks are embedded by reading the whole text: each is the mean of its
      #   tokens' states, which have seen the rest
      # @param deduplicate [Boolean] whether a text that is there already, by another id, is left out
      # @param bm25 [Hash] `method:` (`:lucene`, `:okapi`, `:atire`, `:bm25l`, `:"bm25+"`), `k1:`, `b:`, `delta:` and
      #   `stopwords:` (`:english`, nil or an Array)
      # @param rescore [Symbol, nil] one of {RESCORES}, for `dtype: :binary`: rows of that type lie beside the bits, and
      #   the nearest by bits are compared once more by them
      # @param pruning [Boolean, Hash] for a late-interaction model: true keeps one vector of fixed size for each text
      #   (MUVERA), which finds the texts that MaxSim compares. A Hash sets `repetitions:` (10), `bits:` (4),
      #   `projection:` (16) and `seed:`: such a vector has repetitions · 2^bits · projection numbers
      # @param similarity [Symbol, nil] one of {SIMILARITIES}; nil is what the model says, and else `:cosine`. Rows of
      #   bits are compared by their bits, whatever the model says. The file remembers it
      # @return [Index]
      # @raise [ArgumentError] for another type, or for what isn't a positive Integer
      # @raise [InvalidInputError] for more components than 65,536
      def new(dimension: nil, dtype: :f32, model: nil, sparse_model: nil, splitter: nil, late_chunking: false,
              deduplicate: false, bm25: {}, rescore: nil, pruning: false, similarity: nil)
        dimension = Arguments.count(dimension, "dimension")
        dtype = Arguments.choice(dtype, "dtype", DTYPES).to_s
        rescore = Arguments.choice(rescore, "rescore", RESCORES).to_s unless NilClass === rescore
        settings = Settings.read(model: model, sparse_model: sparse_model, splitter: splitter, bm25: bm25,
                                 late_chunking: late_chunking, deduplicate: deduplicate)
        textual = dimension.nil? && settings.model.nil?
        pruning = Pruning.read(pruning, settings.late_model)
        index = _build(dimension || settings.model&.dimension || pruning&.size || 1, dtype, rescore,
                       compared_by(similarity, settings.model, dtype))
        index.configure(settings, documents: textual || settings.models?, textual: textual).prune(pruning)
      end

      # Maps a file that {#save} wrote.
      #
      # @param path [String, Pathname]
      # @param write [Boolean] whether what is added and deleted goes to the file, see {#sync}. An index has one writer
      #   at a time, and any number of readers in other processes
      # @param options [Hash] `model sparse_model splitter late_chunking deduplicate`, as {new} takes them: they are not
      #   in the file
      # @return [Index]
      # @raise [InvalidInputError] when there is no such file, another process writes to it (where `write` is true), or
      #   the index has vectors of tokens that the model can't be compared with
      # @raise [ModelNotFoundError] when it can't be read
      # @raise [CorruptModelError] when it is not a whole index, with the reason
      def open(path, write: false, **options)
        path = File.expand_path(TextInput.path(path, "path"))
        settings = Settings.read(**options)
        index = nil
        journal = IndexJournal.open(path, write: write ? true : false) { index = _open(path) }
        index.configure(settings, documents: settings.models?, textual: false)
        index.follow(path, journal, write: write ? true : false)
      end

      private

      def compared_by(asked, model, dtype)
        unless NilClass === asked
          asked = Arguments.choice(asked, "similarity", SIMILARITIES)
          return asked.name unless dtype == "binary" && asked != :cosine

          raise ArgumentError,
                "similarity: #{asked.inspect} needs dtype: :f32 or :int8; binary rows are compared by their bits"
        end
        dtype == "binary" || model.nil? ? "cosine" : model.similarity_function.name
      end
    end

    # Adds a vector, a text or an image, or puts it in place of what has the id.
    #
    # @param id [Integer, String] of 64 bits at most
    # @param item [Array<Numeric>, String, Tensor, Image, Pathname, IO] a vector, or a text where the index has a model
    #   or is one of texts. A String that isn't a text is packed f32, as `embed(as: :packed)` makes it, or a row of the
    #   index's own type (`as: :int8`, `as: :binary`). With a late-interaction model: a text, an image as
    #   {LateInteractionModel#embed_image} takes it, or a Tensor `[tokens, dimension]`. A String with a path is a text:
    #   give the path of an image as a Pathname
    # @param metadata [Hash] what JSON can hold; {#search} filters by it and returns it, its names as Symbols
    # @return [self]
    # @raise [InvalidInputError] for a vector of another size or with what isn't a finite number, for a text that
    #   nothing embeds or that is too long for `late_chunking`, and for an image that the model doesn't read
    def add(id, item, metadata = {})
      add_items([[id, item, metadata]])
      self
    end

    # Adds many vectors, texts or images, which are embedded together.
    #
    # @example
    #   index = Candle::Index.new(dimension: 2, dtype: :int8)
    #   index.add_all({ 1 => [0.5, 0.5], 2 => [1.0, 0.0] }).size # => 2
    #
    # @param pairs [Enumerable<Array(id, item, metadata)>] each as {#add} takes them; a Hash is one
    # @return [self]
    # @raise [InvalidInputError] as {#add}; the vectors before it are in the index then
    def add_all(pairs)
      raise ArgumentError, "pairs must be an Enumerable of ids and vectors" unless Enumerable === pairs

      pairs.each_slice(BATCH) { |slice| add_items(slice) }
      self
    end

    alias []= add

    # @param id [Integer, String]
    # @return [Boolean] whether there was such a vector or text
    def delete(id)
      @monitor.synchronize { remove(key(id)) }
    end

    # @param id [Integer, String]
    # @return [Boolean]
    def include?(id)
      id = key(id)
      return true if @documents && @monitor.synchronize { @documents.keys(id).any? }

      _contains(id)
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
      ef = ef_of(ef, effort) || EF_CONSTRUCTION
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

    # @return [Integer] how many vectors there are, or texts in an index of words; chunks count one by one
    def size
      @documents ? @monitor.synchronize { [_facts[2], @documents.size].max } : _facts[2]
    end

    alias length size

    # @return [Boolean]
    def empty?
      size.zero?
    end

    # @return [Integer, nil] how many components a vector has; nil in an index of words alone
    def dimension
      _facts[0] unless @textual
    end

    # @return [Symbol] one of {DTYPES}
    def dtype
      _facts[1]
    end

    # @return [Symbol, nil] the type of rows that the nearest by bits are compared by once more
    def rescore
      _facts[4]
    end

    # @return [Symbol] one of {SIMILARITIES}
    def similarity
      _facts[5]
    end

    # @return [Hash, nil] `repetitions bits projection seed` of the vectors of fixed size that stand for those of tokens
    def pruning
      @pruning&.to_h
    end

    # @return [String] one line
    def inspect
      return "#<Candle::Index #{size} texts>" if @textual

      "#<Candle::Index #{size} vectors of #{dimension} #{dtype}>"
    end

    alias to_s inspect

    # Notes what it was made with.
    #
    # @param settings [Settings]
    # @param documents [Boolean] whether it is to hold texts
    # @param textual [Boolean] whether it is to hold texts alone
    # @return [self]
    # @api private
    def configure(settings, documents:, textual:)
      @settings = settings
      @textual = textual
      @monitor = Monitor.new
      @documents = documents ? IndexDocuments.new(settings.bm25) : nil
      @pending = []
      @pending_bytes = 0
      @journal = nil
      @encoded = 0
      self
    end

    # Keeps a vector of fixed size for each text's tokens.
    #
    # @param pruning [Pruning, nil]
    # @return [self]
    # @api private
    def prune(pruning)
      unless NilClass === pruning || Pruning === pruning
        raise ArgumentError, "pruning must be a Pruning, not #{Arguments.shown(pruning)}"
      end

      @pruning = pruning
      _fix(pruning.dimension, *pruning.to_h.values_at(:repetitions, :bits, :projection, :seed)) if pruning
      self
    end

    private

    # `effort:` is the older name of `ef:`.
    def ef_of(ef, effort)
      return Arguments.count(ef, "ef") if NilClass === effort
      raise ArgumentError, "ef and effort are two names of one option: pass one" unless NilClass === ef

      Arguments.count(effort, "effort")
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

require "candle/index/settings"
require "candle/index/pruning"
require "candle/index/adding"
require "candle/index/searching"
require "candle/index/storing"
