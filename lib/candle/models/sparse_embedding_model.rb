# frozen_string_literal: true

Candle::Native.complete(:SparseEmbeddingModel)

module Candle
  # Texts to weights of tokens, for search engines that keep an index of words: SPLADE models, weights without a network
  # (sentence-transformers' `SparseStaticEmbedding`), and routers that look queries up and run documents.
  #
  # Pooling, prompts, routes, the similarity and how many weights are kept come from the model's sentence-transformers
  # files. A masked language model without such files is pooled as SPLADE does it. A model never changes and may be used
  # by any number of threads.
  #
  # @example
  #   model = Candle::SparseEmbeddingModel.from_pretrained("spec/fixtures/tiny/splade")
  #   model.embed("the quick fox", top_k: 2).size # => 2
  #   model.embed("the quick fox", as: :tokens, top_k: 1).keys.first.class # => String
  class SparseEmbeddingModel
    include Model
    include Statistics

    FORMS = %i[hash tokens arrays].freeze
    TASKS = %i[query document].freeze
    MOST_ID = (2**32) - 1
    private_constant :FORMS, :TASKS, :MOST_ID

    # The weights of each text that are not 0. A text's weights do not depend on its neighbours.
    #
    # @example
    #   model = Candle::SparseEmbeddingModel.from_pretrained("spec/fixtures/tiny/splade")
    #   model.embed("fox").keys == model.embed("fox", as: :arrays)[:indices] # => true
    #   model.embed(["fox", "dog"]).size # => 2
    #
    # @param input [String, Array<String>]
    # @param as [Symbol] `:hash`, `{token_id => weight}` by ascending id; `:tokens`, `{token => weight}`, the heaviest
    #   first; `:arrays`, `{indices: [...], values: [...]}`
    # @param task [Symbol, String, nil] `:query` or `:document`: takes the model's route and prompt for it
    # @param prompt [String, nil] put before each text
    # @param prompt_name [String, Symbol, nil] one of the model's own prompts
    # @param top_k [Integer, nil] keep this many weights of a text, the largest; nil is as the model says
    # @param batch_tokens [Integer, nil] how many tokens are computed at once
    # @param truncate [Boolean] false raises for a text beyond {#max_length} instead of cutting it
    # @return [Hash, Array<Hash>] one for a String, one per text for an Array
    # @raise [InvalidInputError] for what isn't a text, naming its index; for unknown prompts; for a task that a router
    #   has no route for
    def embed(input, as: :hash, task: nil, prompt: nil, prompt_name: nil, top_k: nil, batch_tokens: nil, truncate: true)
      texts, single = Arguments.texts(input)
      form = Arguments.choice(as, "as", FORMS)
      pairs = _embed(texts, {
        task: task && Arguments.choice(task, "task", TASKS).to_s, prompt: prompt && TextInput.utf8(prompt, "prompt"),
        prompt_name: prompt_name && Arguments.label(prompt_name, "prompt_name"),
        top_k: Arguments.count(top_k, "top_k"), batch_tokens: Arguments.count(batch_tokens, "batch_tokens"),
        truncate: truncate ? true : false
      }.compact)
      found = pairs.map { |ids, weights| shaped(ids, weights, form) }
      single ? found.first : found
    end

    # {#embed} for what is searched with.
    #
    # @param input [String, Array<String>]
    # @param options [Hash] as {#embed} takes them
    # @return [Hash, Array<Hash>]
    def embed_query(input, **options)
      embed(input, task: :query, **options)
    end

    # {#embed} for what is searched in.
    #
    # @param input [String, Array<String>]
    # @param options [Hash] as {#embed} takes them
    # @return [Hash, Array<Hash>]
    def embed_document(input, **options)
      embed(input, task: :document, **options)
    end

    # Compares a query with a document, as the model was trained to: the greater, the more alike.
    #
    # @example
    #   model = Candle::SparseEmbeddingModel.from_pretrained("spec/fixtures/tiny/splade")
    #   model.similarity({ 1 => 2.0, 7 => 1.0 }, { 1 => 3.0 }) # => 6.0
    #
    # @param one [String, Hash] a text, which is read as a query, or its weights in any form of {#embed}
    # @param other [String, Hash] a text, which is read as a document, or its weights
    # @return [Float] the dot product, or what `model_info[:similarity]` names
    # @raise [InvalidInputError] for what is neither
    def similarity(one, other)
      _similarities(vector(one, "the first vector", :query), [vector(other, "the second vector", :document)]).first
    end

    # @example
    #   model = Candle::SparseEmbeddingModel.from_pretrained("spec/fixtures/tiny/splade")
    #   model.search("the lazy dog", ["hello world", "the lazy dog"], top_k: 1).first[:text] # => "the lazy dog"
    #
    # @param query [String, Hash] a text or its weights in any form of {#embed}
    # @param candidates [Array<String>, Array<Hash>] texts, or weights that were made earlier
    # @param top_k [Integer, nil] how many to return; nil is all
    # @return [Array<Hash>] `{index:, score:, text:}`, best first; `text` is nil for weights
    # @raise [InvalidInputError] for what is neither texts nor weights, naming its index
    def search(query, candidates, top_k: 10)
      top_k = Arguments.count(top_k, "top_k")
      wanted = vector(query, "the query", :query)
      candidates = Arguments.list(candidates)
      scores = _similarities(wanted, vectors(candidates))
      order = scores.each_index.sort_by { |index| [-scores[index], index] }
      order.first(top_k || order.size).map do |index|
        text = candidates[index]
        { index: index, score: scores[index], text: TextInput.text?(text) ? text : nil }
      end
    end

    # @return [Integer] how many tokens may have a weight
    def dimension
      model_info.fetch(:dimensions)
    end

    # @return [Integer, nil] how many tokens of a text are read, special ones included; nil where nothing limits them
    def max_length
      model_info.fetch(:max_length)
    end

    # @return [Hash{String => String}] the model's own prompts by name
    def prompts
      model_info.fetch(:prompts)
    end

    private

    def smoke_test
      embed("a")
    end

    def shaped(ids, weights, form)
      case form
      when :hash then ids.zip(weights).to_h
      when :arrays then { indices: ids, values: weights }
      else
        order = ids.each_index.sort_by { |index| [-weights[index], index] }
        order.to_h { |index| [tokenizer.id_to_token(ids[index]), weights[index]] }
      end
    end

    # @return [Array<Array(Array<Integer>, Array<Float>)>] ids and weights of each
    def vectors(candidates)
      unless Array === candidates
        raise InvalidInputError,
              "candidates must be an Array of texts or of weights, not #{Arguments.shown(candidates)}"
      end

      if candidates.any? && candidates.all? { |candidate| TextInput.text?(candidate) }
        return _embed(TextInput.utf8_all(candidates, "candidates"), { task: "document" })
      end

      candidates.each_with_index.map { |candidate, index| vector(candidate, "candidates[#{index}]", :document) }
    end

    # @return [Array(Array<Integer>, Array<Float>)] ids and weights
    def vector(value, name, task)
      return _embed([TextInput.utf8(value, name)], { task: task.to_s }).first if TextInput.text?(value)

      case value
      when Hash then checked(ids_and_weights(value, name), name)
      else
        raise InvalidInputError,
              "#{name} must be a String or weights as embed makes them, not #{Arguments.shown(value)}"
      end
    end

    def ids_and_weights(weights, name)
      return weights.to_a.transpose if weights.keys.all?(Integer)

      weights.key?(:indices) ? weights.values_at(:indices, :values) : known(weights, name)
    end

    # The ids of tokens.
    def known(weights, name)
      ids = weights.keys.map do |token|
        id = tokenizer.token_to_id(token) if token.is_a?(String)
        next id if id

        raise InvalidInputError, "#{name} has a weight for #{token.inspect[0, 80]}, which is not a token of the model"
      end
      [ids, weights.values]
    end

    def checked(pair, name)
      ids, weights = pair.empty? ? [[], []] : pair
      return [ids, weights.map(&:to_f)] if ids?(ids) && numbers?(weights) && ids.size == weights.size

      raise InvalidInputError, "#{name} must have one number for each token id from 0 to #{MOST_ID}"
    end

    def ids?(list)
      Array === list && list.all? { |id| Integer === id && id.between?(0, MOST_ID) }
    end

    def numbers?(list)
      Array === list && list.all? { |weight| Numeric === weight && weight.real? }
    end
  end
end
