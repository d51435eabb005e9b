# frozen_string_literal: true

Candle::Native.complete(:LateInteractionModel)
# Its native half makes them.
require "candle/tensor"

module Candle
  # Texts to one vector per token, compared token by token (ColBERT): finer than one vector per text, and far cheaper
  # than a {Reranker}, since documents are embedded once. PyLate's checkpoints and Stanford's, with their own prefixes,
  # lengths, query expansion, projection and list of tokens that documents leave out. ColPali and ColQwen2 compare
  # queries with images of pages ({#embed_image}).
  #
  # A model never changes and may be used by any number of threads.
  #
  # @example
  #   model = Candle::LateInteractionModel.from_pretrained("spec/fixtures/tiny/colbert")
  #   model.embed_query("what is the capital?").shape # => [12, 16]
  #   model.rerank("lazy dogs", ["hello world", "the lazy dog"]).size # => 2
  class LateInteractionModel
    include Model
    include Statistics

    # How many documents are embedded at a time when they are scored, so that their vectors need not lie in memory.
    SLICE = 256
    private_constant :SLICE

    class << self
      # @param source [String, Pathname] a Hugging Face id or a directory
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`, or on the CPU `:int8`; nil is f32 on the CPU and the
      #   checkpoint's on a GPU
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param query_length [Integer, nil] how many tokens of a query are read, and how many an expanded one has; nil
      #   is as the checkpoint says
      # @param document_length [Integer, nil] how many tokens of a document are read
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
      # @return [LateInteractionModel]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      # @raise [InvalidInputError] for lengths that have no room for a word
      def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, tokenizer: nil, revision: nil,
                          query_length: nil, document_length: nil, verify: nil, token: nil, cache_dir: nil, **unknown)
        refuse(unknown)
        load_model(source, device: device || positional_device, dtype: dtype, tokenizer: tokenizer, revision: revision,
                           query_length: Arguments.count(query_length, "query_length"),
                           document_length: Arguments.count(document_length, "document_length"), verify: verify,
                           token: token, cache_dir: cache_dir)
      end
    end

    # The vectors of queries, of length 1 each. A checkpoint that expands queries fills them up to their length.
    #
    # @param input [String, Array<String>]
    # @param prompt [String, nil] put before each text
    # @param prompt_name [String, Symbol, nil] one of the model's own prompts
    # @param batch_tokens [Integer, nil] how many tokens are computed at once
    # @return [Tensor, Array<Tensor>] f32 `[tokens, dimension]` on the CPU; one for a String, one per text for an Array
    # @raise [InvalidInputError] for what isn't a text, naming its index, and for unknown prompts
    def embed_query(input, prompt: nil, prompt_name: nil, batch_tokens: nil)
      embed_as("query", input, prompt, prompt_name, batch_tokens)
    end

    # The vectors of documents, of length 1 each, without those of tokens that the checkpoint leaves out.
    #
    # @param input [String, Array<String>]
    # @param prompt [String, nil] put before each text
    # @param prompt_name [String, Symbol, nil] one of the model's own prompts
    # @param batch_tokens [Integer, nil] how many tokens are computed at once
    # @return [Tensor, Array<Tensor>] f32 `[tokens, dimension]` on the CPU; one for a String, one per text for an Array
    # @raise [InvalidInputError] for what isn't a text, naming its index, and for unknown prompts
    def embed_document(input, prompt: nil, prompt_name: nil, batch_tokens: nil)
      embed_as("document", input, prompt, prompt_name, batch_tokens)
    end

    # The vectors of images, of length 1 each: pages as ColPali and ColQwen2 read them, without OCR. They are documents
    # to {#score} and {#rerank}.
    #
    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @return [Tensor, Array<Tensor>] f32 `[tokens, dimension]` on the CPU; one for an image, one per image for an Array
    # @raise [InvalidInputError] for what isn't an image, naming its index, and for models that read texts only
    def embed_image(input)
      images, single = Image.inputs(input)
      tensors = _embed_images(images)
      single ? tensors.first : tensors
    end

    # How well each document answers the query (MaxSim): every vector of the query counts with the greatest product that
    # a vector of the document gives.
    #
    # @example
    #   model = Candle::LateInteractionModel.from_pretrained("spec/fixtures/tiny/colbert")
    #   kept = model.embed_document(["the lazy dog", "hello world"])
    #   model.score("lazy dogs", kept) == model.score("lazy dogs", ["the lazy dog", "hello world"]) # => true
    #
    # @param query [String, Tensor] a text, or its vectors as {#embed_query} makes them
    # @param documents [Array<String>, Array<Tensor>] texts, or their vectors as {#embed_document} makes them
    # @return [Array<Float>] in the order of the documents
    # @raise [InvalidInputError] for what is neither, naming its index, and for vectors of another length
    def score(query, documents)
      query = Tensor === query ? plain(query, "the query") : embed_query(TextInput.utf8(query, "query"))
      documents = Arguments.list(documents)
      unless Array === documents
        raise InvalidInputError, "documents must be an Array of Strings or Tensors, not #{Arguments.shown(documents)}"
      end

      documents.each_slice(SLICE).with_index.flat_map do |slice, number|
        _scores(query, tensors(slice, number * SLICE))
      end
    end

    # Scores every document and sorts them.
    #
    # @param query [String, Tensor]
    # @param documents [Array<String>, Array<Tensor>]
    # @param top_k [Integer, nil] how many to return; nil is all
    # @return [Array<Hash>] `{doc_id:, score:, text:, index:}`, best first; `doc_id` and `index` are both the place in
    #   `documents`, and `text` is nil for Tensors
    # @raise [InvalidInputError] as {#score}
    def rerank(query, documents, top_k: nil)
      top_k = Arguments.count(top_k, "top_k")
      documents = Arguments.list(documents)
      scores = score(query, documents)
      order = scores.each_index.sort_by { |index| [-scores[index], index] }
      order.first(top_k || order.size).map do |index|
        text = documents[index] unless Tensor === documents[index]
        { doc_id: index, score: scores[index], text: text, index: index }
      end
    end

    # @return [Integer] how many components a vector has
    def dimension
      model_info.fetch(:dimensions)
    end

    # @return [Integer] how many tokens of a query are read, special ones included
    def query_length
      model_info.fetch(:query_length)
    end

    # @return [Integer] how many tokens of a document are read, special ones included
    def document_length
      model_info.fetch(:document_length)
    end

    # @return [Hash{String => String}] the model's own prompts by name
    def prompts
      model_info.fetch(:prompts)
    end

    private

    def smoke_test
      embed_query("a")
    end

    def embed_as(task, input, prompt, prompt_name, batch_tokens)
      texts, single = Arguments.texts(input)
      tensors = _embed(texts, task, {
        prompt: prompt && TextInput.utf8(prompt, "prompt"),
        prompt_name: prompt_name && Arguments.label(prompt_name, "prompt_name"),
        batch_tokens: Arguments.count(batch_tokens, "batch_tokens")
      }.compact)
      single ? tensors.first : tensors
    end

    # Texts among them are embedded together.
    def tensors(slice, first)
      places = slice.each_index.reject { |place| Tensor === slice[place] }
      texts = places.map { |place| TextInput.utf8(slice[place], "documents[#{first + place}]") }
      found = places.zip(_embed(texts, "document", {})).to_h
      slice.each_index.map { |place| found[place] || plain(slice[place], "documents[#{first + place}]") }
    end

    # The same Tensor where its numbers can be read as they are.
    def plain(tensor, name)
      unless tensor.rank == 2
        raise InvalidInputError, "#{name} must be a Tensor of shape [tokens, dimension], not of shape #{tensor.shape}"
      end

      tensor.to_device("cpu").to_dtype(:f32)
    end
  end
end
