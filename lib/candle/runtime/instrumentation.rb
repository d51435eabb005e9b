# frozen_string_literal: true

module Candle
  # Events of `ActiveSupport::Notifications` around the calls of models, where ActiveSupport is loaded: `embed.candle`,
  # `rerank.candle`, `classify.candle`, `entities.candle`, `fill.candle`, `generate.candle` and the like, see
  # docs/guides/observability.md. Without it a call is what it is without this module.
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
      [:LateInteractionModel, "embed", %i[embed_image], 0, false],
      [:LateInteractionModel, "rerank", %i[rerank score], 1],
      [:Reranker, "rerank", %i[rerank rerank_with_pooling rerank_sigmoid_with_pooling score], 1],
      [:Classifier, "classify", %i[classify zero_shot], 0],
      [:NER, "entities", %i[extract_entities predict_tokens analyze redact], 0],
      [:GLiNER, "entities", %i[extract redact], 0],
      [:GLiNER, "classify", %i[classify], 0],
      [:GLiClass, "classify", %i[classify], 0],
      [:MaskedLM, "fill", %i[fill], 0],
      [:QuestionAnswerer, "answer", %i[answer], 1],
      [:LLM, "generate", %i[generate generate_stream generate_each chat chat_stream complete answer generate_structured
                            generate_regex chat_with_tools], 0],
      [:Seq2Seq, "generate", %i[generate generate_stream complete summarize translate], 0],
      [:VLM, "generate", %i[describe ask chat], nil],
      [:CLIP, "embed", %i[embed_text], 0],
      [:CLIP, "embed", %i[embed_image], 0, false],
      [:CLIP, "classify", %i[classify_image], 0, false],
      [:ImageEmbeddingModel, "embed", %i[embed], 0, false],
      [:ImageClassifier, "classify", %i[classify], 0, false],
      [:ObjectDetector, "detect", %i[detect], 0, false],
      [:DocumentReader, "read", %i[read], 0, false],
      [:ImageSegmenter, "segment", %i[segment], 0, false],
      [:DepthEstimator, "estimate", %i[estimate], 0, false],
      [:AudioEmbeddingModel, "embed", %i[embed embed_text], 0, false],
      [:AudioEmbeddingModel, "classify", %i[classify_audio], 0, false],
      [:VoiceActivityDetector, "detect", %i[detect probabilities], 0, false],
      [:AudioClassifier, "classify", %i[classify], 0, false],
      [:Transcriber, "transcribe", %i[transcribe], 0, false]
    ].freeze

    # What gives an Enumerator without a block, and computes when that is read.
    LAZY = %i[generate_stream chat_stream generate_each].freeze
    # The event that is under way in this fiber.
    CURRENT = :candle_instrumented_call
    # The value of an optional argument that a call does not have.
    UNSET = Object.new.freeze
    # How each kind of parameter is written in the definition of a method.
    WRITTEN = { req: "%s", opt: "%s = UNSET", keyreq: "%s:", key: "%s: UNSET", keyrest: "**%s", block: "&%s" }.freeze
    private_constant :LAZY, :CURRENT, :UNSET, :WRITTEN

    # Class methods of instrumented classes: they wrap the methods of {CALLS} as these are defined or included.
    #
    # @api private
    module Hooks
      # @param modules [Array<Module>]
      # @return [Class]
      def include(*modules)
        super.tap { modules.flat_map(&:instance_methods).each { |name| Instrumentation.wrap(self, name) } }
      end

      private

      def method_added(name)
        super
        Instrumentation.wrap(self, name)
      end
    end

    class << self
      # Puts the events around the calls of a class, as its methods are defined.
      #
      # @param model [Class]
      # @return [void]
      def install(model)
        calls = CALLS.select { |name, *| model.name == "Candle::#{name}" }
        return if calls.empty?

        wrappers[model] = Module.new
        model.prepend(wrappers[model])
        model.extend(Hooks)
      end

      # Puts the event around one method, if it has one. The wrapper has the parameters of the method and its place in
      # the source, so that documentation tools, IRB and IDEs show those.
      #
      # @param model [Class]
      # @param name [Symbol]
      # @return [void]
      def wrap(model, name)
        found = CALLS.find { |owner, _, names| model.name == "Candle::#{owner}" && names.include?(name) } or return
        _, event, _, place, text = found

        method = model.instance_method(name)
        method = method.super_method while method.owner == wrappers[model]
        code = wrapper(method, event, place, text != false)
        wrappers[model].module_eval(code, *method.source_location)
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

      # Runs something inside an event whose payload is known in the end.
      #
      # @param event [String] without `.candle`
      # @param payload [#call] what there is to say of it
      # @return [Object] what the block returns
      def event(event, payload)
        return yield unless listening?("#{event}.candle")

        told = {}
        ::ActiveSupport::Notifications.instrument("#{event}.candle", told) do
          yield
        ensure
          told.merge!(payload.call)
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

      # @return [Hash{Class => Module}] what is prepended to each class
      def wrappers
        @wrappers ||= {}
      end

      # The definition of a method around another one, on one line, so that the lines of a backtrace are those of the
      # method itself. Beside its parameters the wrapper takes unknown keywords, to say what was meant.
      def wrapper(method, event, place, text)
        kinds = method.parameters
        names = ->(*wanted) { kinds.filter_map { |kind, name| name if wanted.include?(kind) } }
        call = "super(*__given, **__keywords)"
        lazy = "return #{call} unless block_given?; " if LAZY.include?(method.name)
        "def #{method.name}(#{written(kinds)}); #{refusal(names)}" \
          "__given = [#{names.call(:req, :opt).join(", ")}].reject { |value| UNSET.equal?(value) }; " \
          "__keywords = { #{keywords(names)} }.reject { |_, value| UNSET.equal?(value) }; #{lazy}" \
          "Instrumentation.around(#{event.inspect}, self, #{place ? names.call(:req, :opt).fetch(place) : "nil"}, " \
          "text: #{text}) { #{call} }; end"
      end

      def written(kinds)
        closed = kinds.none? { |kind, _| kind == :keyrest }
        block, others = kinds.partition { |kind, _| kind == :block }
        [*others, *([%i[keyrest unknown]] if closed), *block]
          .map { |kind, name| format(WRITTEN.fetch(kind), name) }.join(", ")
      end

      def refusal(names)
        return if names.call(:keyrest).any?

        "Hints.refuse(unknown, #{names.call(:keyreq, :key).inspect}) unless unknown.empty?; "
      end

      def keywords(names)
        [*names.call(:keyreq, :key).map { |name| "#{name}: #{name}" },
         *names.call(:keyrest).map { |name| "**#{name}" }].join(", ")
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
