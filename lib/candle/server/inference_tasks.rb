# frozen_string_literal: true

module Candle
  class Server
    # `POST /`, where the hub's inference client and TEI's clients send every task. The task follows from the model that
    # the request names, else from what it sends, else from the first model.
    #
    # @api private
    class InferenceTasks < Pipelines
      # Fields of `parameters` that only one task has, and the kinds of models that do it.
      SIGNS = {
        %w[tgt_lang src_lang] => %i[seq2seq],
        %w[max_new_tokens do_sample return_full_text typical_p generate_parameters] => %i[llm seq2seq vlm],
        %w[aggregation_strategy ignore_labels stride] => %i[ner],
        %w[function_to_apply] => %i[classifier image_classifier],
        %w[targets] => %i[masked_lm]
      }.freeze
      # The method for each kind of model; others make vectors.
      TASKS = {
        reranker: :rerank, sparse: :embed_sparse, late_interaction: :embed_tokens, ner: :entities, llm: :generate,
        vlm: :describe, seq2seq: :rewrite_or_translate, masked_lm: :fill_mask, image_classifier: :classify_image
      }.freeze
      # Parameters of the hub's text generation, and the fields of {GenerationConfig} they mean.
      NAMES = { "temperature" => :temperature, "top_p" => :top_p, "top_k" => :top_k, "seed" => :seed,
                "repetition_penalty" => :repetition_penalty, "stop" => :stop_sequences }.freeze
      private_constant :SIGNS, :TASKS, :NAMES

      # @param request [Request]
      # @return [Array] an answer of Rack
      def root(request)
        return rerank(request) if !request.picture && request.json.key?("query")
        return similarity(request) if !request.picture && sentences?(request)

        entry = asked_model(request)
        return labelled(request, entry) if parameters(request).key?("candidate_labels")
        return predict(request, nested: true) if entry.kind == :classifier

        send(TASKS.fetch(entry.kind, :embed), request)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: how a language model goes on
      def generate(request)
        entry = models.fetch(model_name(request), :llm, :vlm)
        raise invalid("streams are at /v1/completions", param: "stream") if request.flag("stream", false)

        prompt = texts(request.field("inputs", String), "inputs").first.first
        run = answer_to(entry, prompt, options: sampling(request), usual: {}, fields: {})
        text = compute(request) { run.run.text }
        json([{ generated_text: parameters(request)["return_full_text"] == true ? prompt + text : text }])
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: what may stand in the gaps of a text
      def fill_mask(request)
        entry = models.fetch(model_name(request), :masked_lm)
        text = texts(request.field("inputs", String), "inputs").first.first
        found = compute(request) { entry.model.fill(text, top_k: parameters(request).fetch("top_k", 5)) }
        shape = ->(one) { { score: one[:score], token: one[:id], token_str: one[:token], sequence: one[:sequence] } }
        json(found.map { |one| one.is_a?(Array) ? one.map(&shape) : shape.call(one) })
      end

      private

      def sampling(request)
        given = parameters(request)
        options = sampling_of(given, NAMES, "parameters")
        options[:temperature] = 0 if given["do_sample"] != true && !options.key?(:temperature)
        options.merge(max_length: length(request) || [limits.max_tokens, 100].min)
      end

      # The model that is named, or the one whose task has these parameters, or the first.
      def asked_model(request)
        name = model_name(request)
        return models.fetch(name) if name

        given = parameters(request)
        return models.fetch(nil, *(image?(request) ? [:clip] : %i[classifier clip])) if given.key?("candidate_labels")

        _, kinds = SIGNS.find { |names, _| names.any? { |sign| given.key?(sign) } }
        models.fetch(nil, *kinds)
      end

      def sentences?(request)
        inputs = request.json["inputs"]
        return false unless inputs.is_a?(Hash)
        return true if inputs.key?("source_sentence") || inputs.key?("sentences")

        raise invalid("inputs is an object of no task that this server knows: it takes source_sentence and sentences",
                      param: "inputs")
      end

      def image?(request)
        request.picture || Picture.url?(request.json["inputs"])
      end

      def labelled(request, entry)
        entry.kind == :classifier ? zero_shot(request, entry) : classify_image(request)
      end

      # Labels that the model was not trained on, as the hub's client reads them.
      def zero_shot(request, entry)
        text = texts(request.field("inputs", String), "inputs").first.first
        given = parameters(request)
        labels = given["candidate_labels"]
        raise invalid("candidate_labels must be an array of texts", param: "parameters") unless strings?(labels)

        options = { hypothesis_template: given["hypothesis_template"],
                    multi_label: given["multi_label"] == true }.compact
        json(compute(request) { entry.model.zero_shot(text, labels, **options) })
      end

      def embed_tokens(request)
        entry = models.fetch(model_name(request), :late_interaction)
        inputs = texts(request.field("inputs", String, Array), "inputs").first
        json(compute(request) { entry.model.embed_document(inputs).map(&:to_a) })
      end

      def rewrite_or_translate(request)
        parameters(request).key?("tgt_lang") ? translate(request) : rewrite(request)
      end
    end
  end
end
