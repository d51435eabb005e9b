# frozen_string_literal: true

module Candle
  class Server
    # The dialect of Text Embeddings Inference.
    #
    # @api private
    class TEI < API
      # Its names for kinds of problems, and its statuses where they differ from ours.
      KINDS = { 400 => "Validation", 404 => "Validation", 413 => "Validation", 422 => "Tokenizer", 429 => "Overloaded",
                503 => "Unhealthy" }.freeze
      private_constant :KINDS

      # @param problem [Problem]
      # @return [Hash]
      def error(problem)
        { error: problem.message, error_type: KINDS.fetch(status(problem), "Backend") }
      end

      # @param problem [Problem]
      # @return [Integer] what can't be validated is "too large" here
      def status(problem)
        problem.code == "invalid_request" && problem.status == 400 ? 413 : problem.status
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: one vector per text
      def embed(request)
        entry = models.fetch(request.field("model", String, default: nil), :embedding, *EmbeddingInputs::KINDS)
        return embed_images(request, entry) unless entry.kind == :embedding

        inputs = inputs_of(request)
        options = embed_options(request)
        vectors = compute(request) do
          next entry.model.embed_ids(inputs, **options.slice(:normalize, :dimensions)) if inputs.first.is_a?(Array)

          entry.model.embed(inputs, **options)
        end
        json(vectors)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: one vector per token of each text
      def embed_all(request)
        entry = embedding_model(request)
        inputs = texts(request.field("inputs", String, Array), "inputs").first
        json(compute(request) { inputs.map { |text| entry.model.embeddings(text).to_a.first } })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: weights of tokens for each text
      def embed_sparse(request)
        unless models.any? { |entry| entry.kind == :sparse }
          raise Problem.new(424, "wrong_model", "no model of this server makes sparse embeddings")
        end

        entry = models.fetch(request.field("model", String, default: nil), :sparse)
        inputs = texts(request.field("inputs", String, Array), "inputs").first
        options = embed_options(request).slice(:truncate, :prompt_name)
        weights = compute(request) { entry.model.embed(inputs, as: :hash, **options) }
        json(weights.map { |list| list.map { |index, value| { index: index, value: value } } })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: the texts' places and scores, best first
      def rerank(request)
        entry = models.fetch(request.field("model", String, default: nil), :reranker)
        query = request.field("query", String)
        documents = texts(request.field("texts", Array), "texts").first
        raise invalid("texts must not be empty", param: "texts") if documents.empty?

        raw = request.flag("raw_scores", false)
        ranked = compute(request) { entry.model.rerank(query, documents, apply_sigmoid: !raw) }
        with_text = request.flag("return_text", false)
        json(ranked.map do |found|
          { index: found[:doc_id], score: found[:score] }.merge(with_text ? { text: found[:text] } : {})
        end)
      end

      # @param request [Request]
      # @param nested [Boolean] whether one text is answered like a list of one
      # @return [Array] an answer of Rack: labels and scores, best first
      def predict(request, nested: false)
        entry = models.fetch(request.field("model", String, default: nil), :classifier)
        inputs, pairs, single = sequences(request.field("inputs", String, Array))
        lists = compute(request) do
          inputs.zip(pairs).map { |text, pair| entry.model.classify(text, pair: pair) }
        end
        json(single && !nested ? lists.first : lists)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: entities as the hub's inference service writes them
      def entities(request)
        entry = models.fetch(request.field("model", String, default: nil), :ner)
        text = texts(request.field("inputs", String), "inputs").first.first
        found = compute(request) { entry.model.extract_entities(text, confidence_threshold: 0.0) }
        json(found.map do |entity|
          { entity_group: entity[:label], score: entity[:confidence], word: entity[:text], start: entity[:start],
            end: entity[:end] }
        end)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: the cosine of a sentence with others
      def similarity(request)
        entry = embedding_model(request)
        inputs = request.field("inputs", Hash)
        source = inputs["source_sentence"]
        sentences = inputs["sentences"]
        raise invalid("inputs needs source_sentence and sentences", param: "inputs") unless source.is_a?(String)

        all, = texts([source, *sentences], "inputs")
        options = embed_options(request).slice(:truncate)
        scores = compute(request) do
          first, *others = entry.model.embed(all, **options)
          others.map { |vector| entry.model.similarity(first, vector) }
        end
        json(scores)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: the tokens of each text
      def tokenize(request)
        tokenizer = tokenizer(request)
        inputs = texts(request.field("inputs", String, Array), "inputs").first
        special = request.flag("add_special_tokens", true)
        json(compute(request) { inputs.map { |text| tokens(tokenizer, text, special) } })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: texts
      def decode(request)
        tokenizer = tokenizer(request)
        lists = token_lists(request.field("ids", Array), "ids")
        skip = request.flag("skip_special_tokens", true)
        json(compute(request) { lists.map { |list| tokenizer.decode(list, skip_special_tokens: skip) } })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: what is served
      def info(request)
        entry = any_model(request)
        model = entry.model
        json({ model_id: entry.name, model_dtype: model.dtype.to_s, model_type: { entry.kind => details(entry) },
               max_concurrent_requests: limits.running, max_input_length: model.model_info[:max_length],
               max_client_batch_size: limits.batch, auto_truncate: false, version: VERSION,
               models: models.map { |one| { name: one.name, kind: one.kind, loaded: one.loaded? } } })
      end

      private

      def embed_images(request, entry)
        inputs = mixed_inputs(entry, request.field("inputs", String, Array), "inputs")
        options = embed_options(request).slice(:dimensions)
        json(compute(request) { inputs.embed(entry.model, **options).first })
      end

      def embedding_model(request)
        models.fetch(request.field("model", String, default: nil), :embedding)
      end

      def tokenizer(request)
        entry = any_model(request)
        entry.model.tokenizer || raise(invalid("the model #{entry.name} does not read texts", param: "model"))
      end

      def any_model(request)
        models.fetch(request.verb == "GET" ? nil : request.field("model", String, default: nil))
      end

      def embed_options(request)
        { normalize: request.flag("normalize", true), truncate: request.flag("truncate", false),
          prompt_name: request.field("prompt_name", String, default: nil),
          dimensions: request.field("dimensions", Integer, default: nil) }
      end

      def inputs_of(request)
        inputs = request.field("inputs", String, Array)
        raise Problem.new(400, "empty", "inputs must not be empty", param: "inputs") if inputs.empty?
        return texts(inputs, "inputs").first if inputs.is_a?(String) || inputs.all?(String)

        token_lists(inputs, "inputs")
      end

      # A text, a pair of texts, or a list whose elements are lists of one text or two.
      #
      # @return [Array(Array<String>, Array<String, nil>, Boolean)] texts, their partners, and whether it is just one
      def sequences(inputs)
        single = inputs.is_a?(String) || inputs.all?(String)
        lists = single ? [Array(inputs)] : inputs
        unless lists.all? { |list| strings?(Array(list)) && Array(list).size.between?(1, 2) }
          raise invalid("inputs must be a text, a pair of texts, or a list of such lists", param: "inputs")
        end

        first, second = lists.map { |list| [Array(list)[0], Array(list)[1]] }.transpose
        texts(first, "inputs")
        [first, second, single]
      end

      def tokens(tokenizer, text, special)
        found = tokenizer.encode_with_offsets(text, add_special_tokens: special)
        found[:ids].each_index.map do |index|
          start, stop = found[:offsets][index]
          added = found[:special_tokens_mask][index] == 1
          { id: found[:ids][index], text: added ? found[:tokens][index] : text[start...stop], special: added,
            start: added ? nil : start, stop: added ? nil : stop }
        end
      end

      def details(entry)
        return {} unless %i[classifier image_classifier].include?(entry.kind)

        labels = entry.model.labels
        { id2label: labels.each_with_index.to_h { |label, id| [id, label] }, label2id: labels.each_with_index.to_h }
      end
    end
  end
end
