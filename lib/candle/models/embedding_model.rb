# frozen_string_literal: true

Candle::Native.complete(:EmbeddingModel)
# Its native half makes them.
require "candle/tensor"

module Candle
  # Texts to vectors whose nearness is nearness of meaning, by an encoder, a decoder or a table of vectors.
  #
  # Pooling, normalization, maximum length and prompts come from the model's sentence-transformers files, unless given;
  # without those files a vector is the normalized mean of the text's tokens, or the last token's where a GGUF file says
  # so or where a causal checkpoint was saved without its language-model head. A model never changes and may be used by
  # any number of threads.
  #
  # @example
  #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert-sentence")
  #   model.embed("the quick fox").size # => 32
  #   model.embed(["the quick fox", "hello world"]).size # => 2
  class EmbeddingModel
    include Model
    include Statistics

    # The model that is loaded when none is named.
    DEFAULT_MODEL_PATH = "sentence-transformers/all-MiniLM-L6-v2"

    # Its tokenizer, which is its own.
    DEFAULT_TOKENIZER_PATH = DEFAULT_MODEL_PATH

    # What {#embedding} can do with the hidden states: pooling, and whether the vector gets length 1.
    POOLING_METHODS = {
      "pooled" => ["mean", false], "pooled_normalized" => ["mean", true],
      "cls" => ["cls", false], "cls_normalized" => ["cls", true],
      "max" => ["max", false], "last" => ["last", false]
    }.freeze

    FORMS = %i[array tensor packed int8 binary].freeze
    private_constant :FORMS

    class << self
      # @example
      #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert", device: "cpu", pooling: :cls)
      #   model.dimension # => 32
      #
      # @param source [String, Pathname] a Hugging Face id, a directory, or a `.gguf` file
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`, or on the CPU `:int8`; nil is f32 on the CPU and the
      #   checkpoint's on a GPU
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param model_type [String, nil] what {#model_type} answers; the checkpoint itself says how it is computed
      # @param embedding_size [Integer, nil] the default of `dimensions:` in {#embed}
      # @param max_length [Integer, nil] a lower limit of tokens than the model's
      # @param pooling [Symbol, String, nil] `mean cls max last weighted_mean mean_sqrt_len`
      # @param normalize [Boolean, nil] whether vectors get length 1
      # @param gguf_file [String, nil] which file of a repository with several
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
      # @return [EmbeddingModel]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      # @raise [InvalidInputError] when the model can't do what is asked
      def from_pretrained(source = DEFAULT_MODEL_PATH, positional_device = nil, device: nil, dtype: nil, tokenizer: nil,
                          revision: nil, model_type: nil, embedding_size: nil, max_length: nil, pooling: nil,
                          normalize: nil, gguf_file: nil, verify: nil, token: nil, cache_dir: nil, **unknown)
        refuse(unknown)
        model = load_model(source, device: device || positional_device, dtype: dtype, tokenizer: tokenizer,
                                   revision: revision, pooling: pooling&.to_s, normalize: normalize,
                                   max_length: Arguments.count(max_length, "max_length"), gguf_file: gguf_file,
                                   verify: verify, token: token, cache_dir: cache_dir)
        refuse_chat(model) unless pooling
        model.prefer(model_type, Arguments.count(embedding_size, "embedding_size"))
        model
      end

      # The same as {.from_pretrained}, with the source as an argument or as `model_path:`.
      #
      # @param arguments [Array] as {.from_pretrained} takes them
      # @param tokenizer_path [String, nil] the same as `tokenizer:` of {.from_pretrained}
      # @param options [Hash] as {.from_pretrained} takes them
      # @return [EmbeddingModel]
      def new(*arguments, tokenizer_path: nil, **options)
        options[:tokenizer] ||= tokenizer_path
        super(*arguments, **options)
      end

      private

      # A GGUF file says whether it was made for embeddings. One that was not embeds, but badly.
      def refuse_chat(model)
        file = model.model_info[:files].find { |path| path.end_with?(".gguf") } or return
        advice = ModelKind.advice(file, self) or return
        model.close
        raise UnsupportedModelError, "#{advice}. To embed texts with it anyway, say how to pool the states of " \
                                     "its tokens, as in pooling: :mean"
      end
    end

    # One vector per text. Texts are packed into batches by their tokens; a vector does not depend on its neighbours.
    #
    # @example
    #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert-sentence")
    #   model.embed("the quick fox", dimensions: 8).sum { |value| value * value }.round(5) # => 1.0
    #   model.embed(["fox", "dog"], as: :tensor).shape # => [2, 32]
    #   model.embed("fox", as: :packed).unpack("e*").size # => 32
    #   model.embed("fox", as: :binary).bytesize # => 4
    #
    # @param input [String, Array<String>]
    # @param prompt [String, nil] put before each text
    # @param prompt_name [String, Symbol, nil] one of the model's own prompts, such as `"query"`
    # @param task [String, Symbol, nil] what the texts are for: one of {#tasks}, such as `"retrieval.query"`, or for any
    #   model `:query` or `:document`. It chooses the adapter or the route, and the model's prompt for it
    # @param pooling [Symbol, String, nil] `mean cls max last weighted_mean mean_sqrt_len`; nil is the model's own
    # @param normalize [Boolean, nil] whether vectors get length 1; nil is as the model says
    # @param dimensions [Integer, nil] keep this many leading components; normalized vectors are normalized again
    # @param batch_tokens [Integer, nil] how many tokens are computed at once
    # @param progress [Boolean, #call] true shows a bar on a terminal; a Proc gets `(done, total)`
    # @param as [Symbol] `:array`; `:tensor`, one of shape `[n, dimension]`; or Strings: `:packed` (little-endian
    #   f32), `:int8` (signed bytes, the greatest magnitude of the vector being 127), `:binary` (one bit per
    #   component, set where it is positive, as `unpack("B*")` reads them)
    # @param truncate [Boolean] false raises for a text beyond {#max_length} instead of cutting it
    # @return [Array<Float>, Array<Array<Float>>, Tensor, String, Array<String>] one vector for a String, one per
    #   text for an Array
    # @raise [InvalidInputError] for what isn't a text, naming its index; for unknown pooling, prompts or tasks; for
    #   more dimensions than the model has
    def embed(input, prompt: nil, prompt_name: nil, task: nil, pooling: nil, normalize: nil, dimensions: nil,
              batch_tokens: nil, progress: false, as: :array, truncate: true)
      texts, single = Arguments.texts(input)
      form = Arguments.choice(as, "as", FORMS)
      settings = settings(prompt: prompt, prompt_name: prompt_name, task: task, pooling: pooling,
                          normalize: normalize, dimensions: dimensions, batch_tokens: batch_tokens, truncate: truncate)
      vectors = _embed(texts, settings, form.to_s, Progress.for(progress))
      single && form != :tensor ? vectors.first : vectors
    end

    # The same as {#embed} for texts that were tokenized before, such as the chunks of a long one.
    #
    # @example
    #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert-sentence")
    #   ids = model.tokenizer.encode("the quick fox")
    #   model.embed_ids([ids]).first == model.embed("the quick fox") # => true
    #
    # @param lists [Array<Array<Integer>>] token ids, with the special ones that the model expects
    # @param task [String, Symbol, nil] as for {#embed}; a prompt is not added
    # @param pooling [Symbol, String, nil] as for {#embed}
    # @param normalize [Boolean, nil]
    # @param dimensions [Integer, nil]
    # @param batch_tokens [Integer, nil]
    # @param as [Symbol]
    # @return [Array<Array<Float>>, Tensor, Array<String>] one vector per list
    # @raise [InvalidInputError] for ids beyond the vocabulary, for lists that are empty or beyond {#max_length}, and
    #   for static embeddings
    def embed_ids(lists, task: nil, pooling: nil, normalize: nil, dimensions: nil, batch_tokens: nil, as: :array)
      form = Arguments.choice(as, "as", FORMS)
      settings = settings(prompt: "", prompt_name: nil, task: task, pooling: pooling, normalize: normalize,
                          dimensions: dimensions, batch_tokens: batch_tokens, truncate: true)
      _embed_ids(lists, settings, form.to_s)
    end

    # Embeds any Enumerable, however long, a batch at a time. What was yielded stays yielded: when a text is bad, the
    # ones before it have been yielded, and the error names its index, from which a next call can go on.
    #
    # @example
    #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert-sentence")
    #   model.embed_each(%w[fox dog].each) { |text, vector| [text, vector.size] }
    #   model.embed_each(%w[fox dog]).first # => ["fox", [...]]
    #
    # @param texts [Enumerable<String>]
    # @param batch [Integer] how many texts are computed together
    # @param options [Hash] as {#embed} takes them, `progress:` excepted
    # @yieldparam text [String] as it was given
    # @yieldparam vector [Array<Float>, Tensor, String]
    # @return [Enumerable, Enumerator] what was given; without a block an Enumerator of `[text, vector]`
    def embed_each(texts, batch: 256, **options, &block)
      batch = Arguments.count(batch, "batch") || raise(ArgumentError, "batch must be a positive Integer, not nil")
      unless Arguments.answers?(texts, :each) && !texts.is_a?(Hash)
        raise InvalidInputError,
              "texts must be an Enumerable of Strings, not #{Arguments.shown(texts)}: a single one goes to embed"
      end
      size = proc { texts.size if texts.respond_to?(:size) }
      return enum_for(:embed_each, texts, batch: batch, **options, &size) unless block

      stream(texts, batch, options, &block)
      texts
    end

    # @param text [String]
    # @param pooling_method [String, Symbol] one of {POOLING_METHODS}
    # @return [Tensor] of shape `[1, dimension]`
    # @raise [ArgumentError] for an unknown method
    def embedding(text, pooling_method: "pooled_normalized")
      pooling, normalize = POOLING_METHODS.fetch(Arguments.label(pooling_method, "pooling_method")) do
        raise ArgumentError,
              "unknown pooling method #{pooling_method.inspect}: use #{POOLING_METHODS.keys.join(", ")}"
      end
      embed(TextInput.utf8(text), pooling: pooling, normalize: normalize, as: :tensor)
    end

    # The hidden state of every token, special ones included.
    #
    # @param text [String]
    # @return [Tensor] of shape `[1, tokens, hidden size]`
    def embeddings(text)
      _token_embeddings(TextInput.utf8(text))
    end

    # @param states [Tensor] of shape `[n, tokens, hidden size]`, as {#embeddings} gives it
    # @return [Tensor] the mean over the tokens, of shape `[n, hidden size]`
    def pool_embedding(states)
      hidden_states(states).mean(1)
    end

    # @param states [Tensor] of shape `[n, tokens, hidden size]`
    # @return [Tensor] the same mean with length 1
    def pool_and_normalize_embedding(states)
      pooled = pool_embedding(states)
      pooled / pooled.norm(1, keepdim: true)
    end

    # @param states [Tensor] of shape `[n, tokens, hidden size]`
    # @return [Tensor] the first token's state, of shape `[n, hidden size]`
    def pool_cls_embedding(states)
      hidden_states(states).get(0, 1)
    end

    # @return [Integer] how many components a vector has
    def dimension
      @embedding_size || model_info.fetch(:dimensions)
    end

    # @return [Integer, nil] how many tokens of a text are read, special ones included; nil where nothing limits them
    def max_length
      model_info.fetch(:max_length)
    end

    # @param text [String]
    # @return [Integer] how many tokens a text has, special ones included and nothing cut
    def count_tokens(text)
      _count_tokens(TextInput.utf8(text))
    end

    # @return [Hash{String => String}] the model's own prompts by name
    def prompts
      model_info.fetch(:prompts)
    end

    # What texts may be for, by the model's own names: the adapters of Jina v3 (`retrieval.query`, `retrieval.passage`,
    # `separation`, `classification`, `text-matching`), or the routes of sentence-transformers' Router (`query`,
    # `document`). An adapter is loaded when it is first used, and takes as much memory as the model.
    #
    # @return [Array<String>] empty where a model reads all texts alike
    def tasks
      model_info.fetch(:tasks)
    end

    # @return [Symbol] how {#similarity} and {#search} compare vectors: `:cosine`, or as the model's
    #   `similarity_fn_name` says `:dot`, `:euclidean` or `:manhattan`
    def similarity_function
      model_info.fetch(:similarity).to_sym
    end

    # @return [String] one of {EmbeddingModelType}, or the name of another family
    def model_type
      @model_type || EmbeddingModelType.of(model_info.fetch(:family))
    end

    # @example
    #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert-sentence")
    #   model.similarity("fox", "fox").round(5) # => 1.0
    #   model.similarity([1.0, 0.0], [0.0, 2.0]) # => 0.0
    #
    # @param one [String, Array<Float>, Tensor] a text or a vector; a binary String of `4 * dimension` bytes is a vector
    # @param other [String, Array<Float>, Tensor]
    # @return [Float] the cosine of both, from -1 to 1; the dot product or the negative distance where
    #   {#similarity_function} says so
    def similarity(one, other)
      nearest(matrix([other]), vector(one, "the first vector"), 1).first.last
    end

    # @example
    #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert-sentence")
    #   found = model.search("the lazy dog", ["hello world", "the lazy dog"], top_k: 1)
    #   found.first[:text] # => "the lazy dog"
    #
    # @param query [String, Array<Float>, Tensor] a text or a vector; a binary String of `4 * dimension` bytes is a
    #   vector, as `embed(as: :packed)` makes it
    # @param candidates [Array<String>, Array<Array<Float>>, Tensor, String, #search] texts or one text, or vectors that
    #   were made earlier, also packed ones, each for itself or all in one String; or an index, whose `search` is
    #   called. The lengths of a Tensor's vectors are computed once
    # @param top_k [Integer, nil] how many to return; nil is all
    # @param prompt [String, nil] put before the query
    # @param prompt_name [String, Symbol, nil] the model's own prompt for the query
    # @param document_prompt [String, nil] put before each text
    # @param document_prompt_name [String, Symbol, nil] the model's own prompt for texts
    # @param task [String, Symbol, nil] what the query is for, as in {#embed}
    # @param document_task [String, Symbol, nil] what the texts are for
    # @return [Array<Hash>] `{index:, score:, text:}`, best first; `text` is nil for vectors. What an index returns
    # @raise [InvalidInputError] for what is neither a text nor a vector, naming its index
    def search(query, candidates, top_k: 10, prompt: nil, prompt_name: nil, document_prompt: nil,
               document_prompt_name: nil, task: nil, document_task: nil)
      top_k = Arguments.count(top_k, "top_k")
      wanted = vector(query, "the query", prompt: prompt, prompt_name: prompt_name, task: task)
      return candidates.search(wanted.flatten_all, top_k: top_k) if Arguments.answers?(candidates, :search)

      candidates = listed(candidates)
      return [] if Arguments.answers?(candidates, :empty?) && candidates.empty?

      rows = matrix(candidates, prompt: document_prompt, prompt_name: document_prompt_name, task: document_task)
      nearest(rows, wanted, top_k).map do |index, score|
        { index: index, score: score, text: text_at(candidates, index) }
      end
    end

    # Notes what of the model the caller prefers.
    #
    # @api private
    def prefer(model_type, size)
      @model_type = Arguments.choice(model_type, "model_type", EmbeddingModelType.all.map(&:to_sym)).to_s if model_type
      return unless size

      full = model_info.fetch(:dimensions)
      raise InvalidInputError, "embedding_size must be at most the model's #{full}, not #{size}" if size > full

      @embedding_size = size
      remember_options(options.to_h.merge("embedding_size" => size))
    end

    private

    def smoke_test
      embed("a")
    end

    def settings(prompt: nil, prompt_name: nil, task: nil, pooling: nil, normalize: nil, dimensions: nil,
                 batch_tokens: nil, truncate: true, first_index: 0)
      {
        task: task && Arguments.label(task, "task"),
        prompt: prompt && TextInput.utf8(prompt, "prompt"),
        prompt_name: prompt_name && Arguments.label(prompt_name, "prompt_name"),
        pooling: pooling && Arguments.label(pooling, "pooling"), normalize: normalize,
        truncate: truncate ? true : false, first_index: first_index,
        dimensions: Arguments.count(dimensions, "dimensions") || @embedding_size,
        batch_tokens: Arguments.count(batch_tokens, "batch_tokens")
      }.compact
    end

    # @return [Array<Array(Integer, Float)>] the rows that fit a vector best, and how well
    def nearest(rows, wanted, top_k)
      return rows.nearest(wanted, top_k: top_k) if similarity_function == :cosine

      wanted = wanted.reshape([1, wanted.elem_count])
      scores = scores(rows, wanted).each_with_index.sort_by { |score, index| [-score, index] }
      scores.first(top_k || scores.size).map { |score, index| [index, score] }
    end

    def scores(rows, wanted)
      return rows.matmul(wanted.t).flatten_all.to_a if similarity_function == :dot

      differences = rows - wanted
      return differences.abs.sum(1).flatten_all.to_a.map(&:-@) if similarity_function == :manhattan

      differences.sqr.sum(1).flatten_all.to_a.map { |sum| -Math.sqrt(sum) }
    end

    def stream(texts, batch, options, &block)
      form = Arguments.choice(options.fetch(:as, :array), "as", FORMS)
      given = settings(**options.except(:as))
      pending = []
      index = 0
      texts.each do |text|
        pending << [text, checked(text, index) { flush(pending, index, given, form, &block) }]
        index += 1
        flush(pending, index, given, form, &block) if pending.size >= batch
      end
      flush(pending, index, given, form, &block)
    end

    # A bad text must not cost those before it: they are yielded first.
    def checked(text, index)
      TextInput.utf8(text, "texts[#{index}]")
    rescue InvalidInputError
      yield
      raise
    end

    def flush(pending, index, settings, form, &block)
      batch = pending.dup
      pending.clear
      return if batch.empty?

      rows(batch, settings.merge(first_index: index - batch.size), form, &block)
    end

    # One by one where the batch as a whole is refused, so that the texts before the one that is too long come out.
    def rows(batch, settings, form, &block)
      vectors = _embed(batch.map(&:last), settings, form.to_s, nil)
    rescue InvalidInputError
      raise if batch.size == 1

      batch.each_with_index do |pair, offset|
        rows([pair], settings.merge(first_index: settings[:first_index] + offset), form, &block)
      end
    else
      batch.each_with_index do |(given, _), offset|
        yield given, form == :tensor ? vectors.get(offset) : vectors[offset]
      end
    end

    def hidden_states(states)
      return states if Tensor === states && states.rank == 3

      shape = Tensor === states ? "one of shape #{states.shape}" : Arguments.shown(states)
      raise InvalidInputError, "states must be a Tensor of shape [n, tokens, hidden size], not #{shape}"
    end

    # @return [Tensor] f32 [dimension]
    def vector(value, name, **prompts)
      value = unpacked(value) || embed(value, as: :tensor, **prompts) if TextInput.text?(value)
      numbers(value, name).flatten_all
    end

    # Texts or vectors in an Array, but for a Tensor and for vectors in one String.
    def listed(candidates)
      case candidates
      when nil then raise InvalidInputError, "candidates must be texts, vectors or an index, not nil"
      when Tensor then candidates
      when Enumerable then Arguments.members(candidates)
      else TextInput.text?(candidates) && unpacked(candidates).nil? ? [candidates] : candidates
      end
    end

    # @return [Tensor] f32 [n, dimension]
    def matrix(candidates, **prompts)
      return unpacked(candidates) if TextInput.text?(candidates)
      return numbers(candidates, "the vectors") if Tensor === candidates && candidates.rank == 2

      rows = Array === candidates ? candidates : [candidates]
      TextInput.text?(rows.first) ? strings(rows, **prompts) : vectors(rows)
    end

    def strings(rows, **prompts)
      return unpacked(rows.join) if rows.all? { |row| packed?(row) }

      embed(TextInput.utf8_all(rows, "candidates"), as: :tensor, **prompts)
    end

    def vectors(rows)
      wrong = rows.index { |row| !(Array === row || Tensor === row || Numeric === row) }
      if wrong
        raise InvalidInputError,
              "candidates[#{wrong}] must be a text or a vector like the others, not #{Arguments.shown(rows[wrong])}"
      end

      numbers(rows.map { |row| Tensor === row ? row.flatten_all : row }, "the vectors")
    end

    # A vector as `embed(as: :packed)` makes it, as against a text.
    def packed?(value)
      String === value && value.encoding == Encoding::BINARY && value.bytesize == 4 * dimension
    end

    # @return [Tensor, nil] f32 [n, dimension] of vectors in a binary String; nil for a text
    def unpacked(value)
      value = TextInput.string_of(value, "text")
      return unless value.encoding == Encoding::BINARY && value.bytesize.positive?
      return unless (value.bytesize % (4 * dimension)).zero?

      Tensor.from_packed(value, [value.bytesize / (4 * dimension), dimension], :f32)
    end

    # The same Tensor where it is one that can be searched, so that what is known of it is kept.
    def numbers(value, name)
      case value
      when Tensor, Array
        return value if value.is_a?(Tensor) && value.dtype == :f32 && value.device.kind == :cpu

        Tensor.new(value, :f32, device: "cpu")
      else
        raise InvalidInputError,
              "#{name} must be a String, an Array of numbers or a Tensor, not #{Arguments.shown(value)}"
      end
    end

    def text_at(candidates, index)
      text = candidates[index] if Array === candidates
      text if TextInput.text?(text) && !packed?(text)
    end
  end
end
