# frozen_string_literal: true

module Candle
  # Events of `ActiveSupport::Notifications` around the calls of models, where ActiveSupport is loaded: `embed.candle`,
  # `rerank.candle`, `classify.candle`, `entities.candle`, `fill.candle`, `generate.candle` and the like, see
  # docs/observability.md. Without it a call is what it is without this module.
  #
  # A call that makes others of the same model is one event, and has the tokens of all of them.
  #
  # @api private
  module Instrumentation
    # The class, the event, its methods, which argument holds what is computed, and whether that is text; nil stands for
    # one picture with a text.
    CALLS = [
      [:EmbeddingModel, "embed", %i[embed embed_ids], 0],
      [:SparseEmbeddingModel, "embed", %i[embed], 0],
      [:LateInteractionModel, "embed", %i[embed_query embed_document], 0],
      [:LateInteractionModel, "rerank", %i[rerank score], 1],
      [:Reranker, "rerank", %i[rerank rerank_with_pooling rerank_sigmoid_with_pooling score], 1],
      [:Classifier, "classify", %i[classify zero_shot], 0],
      [:NER, "entities", %i[extract_entities predict_tokens analyze redact], 0],
      [:MaskedLM, "fill", %i[fill], 0],
      [:LLM, "generate", %i[generate generate_stream generate_each chat chat_stream complete answer generate_structured
                            generate_regex chat_with_tools], 0],
      [:Seq2Seq, "generate", %i[generate generate_stream complete summarize translate], 0],
      [:VLM, "generate", %i[describe ask chat], nil],
      [:CLIP, "embed", %i[embed_text], 0],
      [:CLIP, "embed", %i[embed_image], 0, false],
      [:CLIP, "classify", %i[classify_image], 0, false],
      [:ImageEmbeddingModel, "embed", %i[embed], 0, false],
      [:ImageClassifier, "classify", %i[classify], 0, false]
    ].freeze

    # What gives an Enumerator without a block, and computes when that is read.
    LAZY = %i[generate_stream chat_stream generate_each].freeze
    # The event that is under way in this fiber.
    CURRENT = :candle_instrumented_call
    private_constant :LAZY, :CURRENT

    class << self
      # Puts the events around the calls of a class.
      #
      # @param model [Class]
      # @return [void]
      def install(model)
        CALLS.each do |name, event, methods, place, text = true|
          model.prepend(wrappers(event, methods, place, text)) if model.name == "Candle::#{name}"
        end
      end

      # Runs a call inside its event.
      #
      # @param event [String] without `.candle`
      # @param model [Model]
      # @param inputs [Object] what the call was given
      # @param text [Boolean] whether to count the tokens of it
      # @return [Object] what the block returns
      def around(event, model, inputs, text: true)
        outer = Thread.current[CURRENT]
        return counted(outer, yield) if outer && outer[:object].equal?(model)
        return yield unless listening?("#{event}.candle")

        payload = payload(event, model, inputs, text)
        call = { object: model, payload: payload, counted: {}.compare_by_identity }
        ::ActiveSupport::Notifications.instrument("#{event}.candle", payload) do
          Thread.current[CURRENT] = call
          counted(call, yield)
        ensure
          Thread.current[CURRENT] = outer
        end
      end

      # Adds the tokens of a completion to the event that is under way.
      #
      # @param model [Model]
      # @param completion [Completion]
      # @return [Completion]
      def count(model, completion)
        call = Thread.current[CURRENT]
        call && call[:object].equal?(model) ? counted(call, completion) : completion
      end

      private

      def wrappers(event, methods, place, text)
        Module.new do
          methods.each do |name|
            define_method(name) do |*arguments, **options, &block|
              next super(*arguments, **options, &block) if LAZY.include?(name) && !block

              inputs = arguments[place] if place
              Instrumentation.around(event, self, inputs, text: text) { super(*arguments, **options, &block) }
            end
          end
        end
      end

      def payload(event, model, inputs, text)
        texts = inputs.is_a?(Array) ? inputs : [inputs]
        # A conversation is one text.
        texts = [texts] if event == "generate" && !texts.all?(String)
        { model: model.model_id, device: model.device.to_s, batch: texts.size, queue: waiting(model),
          tokens: text && event != "generate" ? tokens(model, texts) : nil }.compact
      end

      def listening?(name)
        defined?(::ActiveSupport::Notifications) && ::ActiveSupport::Notifications.notifier.listening?(name)
      end

      # A model that is closed says so when it is called.
      def waiting(model)
        model.stats[:waiting] if model.respond_to?(:stats)
      rescue Error
        nil
      end

      def tokens(model, texts)
        return texts.sum(&:size) if texts.all?(Array)
        return unless texts.all?(String)

        most = model.model_info[:max_length] || Float::INFINITY
        model.tokenizer.encode_batch(texts).sum { |ids| [ids.size, most].min }
      rescue Error
        nil
      end

      def counted(call, result)
        completions = result.is_a?(Array) ? result : [result]
        return result unless completions.any? && completions.all?(Completion)

        completions.each do |completion|
          add(call[:payload], completion.usage) unless call[:counted].key?(completion)
          call[:counted][completion] = true
        end
        result
      end

      def add(payload, usage)
        payload[:prompt_tokens] = payload[:prompt_tokens].to_i + usage.prompt_tokens
        payload[:cached_tokens] = payload[:cached_tokens].to_i + usage.cached_tokens.to_i
        payload[:completion_tokens] = payload[:completion_tokens].to_i + usage.completion_tokens
        payload[:tokens] = payload[:prompt_tokens] + payload[:completion_tokens]
      end
    end
  end
end
