# frozen_string_literal: true

module Candle
  # A task by the name that transformers and informers give it, with results of their form. Made by {Candle.pipeline}.
  #
  # | task | called with | result for one input |
  # |---|---|---|
  # | `embedding`, `feature-extraction` | texts | a vector |
  # | `reranking` | a query and documents | `[{doc_id:, score:}]`, best first |
  # | `text-classification`, `sentiment-analysis` | texts, `top_k:` | `{label:, score:}`; with `top_k:` a list |
  # | `zero-shot-classification` | texts and labels | `{sequence:, labels:, scores:}` |
  # | `token-classification`, `ner` | texts | `[{entity_group:, score:, word:, start:, end:}]` |
  # | `question-answering` | a question and its context, `top_k:` | `{answer:, score:, start:, end:}` |
  # | `zero-shot-ner` | texts, `labels:` | `[{entity_group:, score:, word:, start:, end:}]` |
  # | `fill-mask` | texts | `[{score:, token:, token_str:, sequence:}]` |
  # | `text-generation` | prompts or messages, `return_full_text:` | `[{generated_text:}]`, by default with the prompt |
  # | `text2text-generation`, `summarization`, `translation` | texts | `[{generated_text:}]`, `[{summary_text:}]`, ... |
  # | `image-classification` | images, `top_k:` | `[{label:, score:}]` |
  # | `zero-shot-image-classification` | images and labels | `[{label:, score:}]` |
  # | `object-detection` | images, `threshold:` | `[{label:, score:, box: {xmin:, ymin:, xmax:, ymax:}}]` |
  # | `zero-shot-object-detection` | images and labels, `threshold:` | the same |
  # | `image-segmentation` | images, `labels:` | `[{label:, score:, mask:}]` |
  # | `depth-estimation` | images | `{predicted_depth:, depth:}` |
  # | `image-feature-extraction` | images | a vector |
  # | `audio-classification` | audio, `top_k:` | `[{label:, score:}]` |
  # | `zero-shot-audio-classification` | audio and labels | `[{label:, score:}]` |
  # | `audio-feature-extraction` | audio | a vector |
  # | `automatic-speech-recognition` | audio | `{text:}` |
  # | `image-to-text` | images | `[{generated_text:}]` |
  #
  # An Array of inputs gives one result each.
  class Pipeline
    # The kind of model that runs each task, see {ModelKind::CLASSES}.
    TASKS = {
      "embedding" => :embedding, "feature-extraction" => :embedding, "reranking" => :reranker,
      "text-classification" => :classifier, "sentiment-analysis" => :classifier,
      "zero-shot-classification" => :classifier, "token-classification" => :ner, "ner" => :ner,
      "question-answering" => :question_answering, "zero-shot-ner" => :gliner,
      "fill-mask" => :masked_lm, "text-generation" => :llm, "text2text-generation" => :seq2seq,
      "summarization" => :seq2seq, "translation" => :seq2seq, "image-classification" => :image_classifier,
      "zero-shot-image-classification" => :clip, "image-feature-extraction" => :image_embedding,
      "image-to-text" => :vlm, "object-detection" => :object_detector,
      "zero-shot-object-detection" => :object_detector, "image-segmentation" => :image_segmenter,
      "depth-estimation" => :depth_estimator,
      "audio-classification" => :audio_classifier, "audio-feature-extraction" => :audio_embedding,
      "zero-shot-audio-classification" => :audio_embedding, "automatic-speech-recognition" => :speech
    }.freeze

    # How the parts of an entity are named.
    ENTITY = { entity_group: :label, score: :confidence, word: :text, start: :start, end: :end }.freeze
    # What runs the models of each kind, where it isn't `embed` alone.
    RUNS = { reranker: :ranked, classifier: :labels, zero_shot: :zero_shot, zero_shot_audio: :audio_labels,
             ner: :entities, masked_lm: :filled, question_answering: :answered, gliner: :extracted,
             llm: :generated, seq2seq: :rewritten, image_classifier: :image_labels, clip: :image_labels,
             object_detector: :things, zero_shot_things: :named_things, image_segmenter: :parts,
             depth_estimator: :depths, vlm: :described, audio_classifier: :image_labels, speech: :spoken }.freeze
    # Tasks that models do beside their own.
    ZERO_SHOT = { "zero-shot-classification" => :zero_shot, "zero-shot-object-detection" => :zero_shot_things,
                  "zero-shot-audio-classification" => :zero_shot_audio }.freeze
    private_constant :ENTITY, :RUNS, :ZERO_SHOT

    # @return [String] one of the keys of {TASKS}
    attr_reader :task
    # @return [Model] what runs the task
    attr_reader :model

    # @param task [String, Symbol] a key of {TASKS}; `translation_en_to_de` names languages too
    # @param model [Model, String, Pathname, nil] a model, or where to load it from; nil is the default of its class
    # @param options [Hash] as `from_pretrained` of the model's class takes them
    # @raise [ArgumentError] for an unknown task, and for no model where there is no default
    def initialize(task, model = nil, **options)
      @task, @languages = named(task)
      klass = class_for(model)
      @model = model.is_a?(klass) ? model : loaded(klass, model, options)
    end

    # @param inputs [Array] what the task takes, see above
    # @param options [Hash] as the model's method takes them
    # @return [Object] see above
    def call(*inputs, **options)
      kind = ZERO_SHOT.fetch(task) { TASKS.fetch(task) }
      RUNS.key?(kind) ? method(RUNS[kind]).call(*inputs, **options) : model.embed(*inputs, **options)
    end

    alias [] call

    # @return [Proc] so that `texts.map(&pipeline)` works
    def to_proc
      method(:call).to_proc
    end

    # @return [String] one line
    def inspect
      "#<Candle::Pipeline #{task} #{model.model_id}>"
    end

    private

    # @return [Array(String, Hash)] the task, and the languages of a translation
    def named(task)
      name = Arguments.label(task, "task").tr("_", "-")
      from, to = name.match(/\Atranslation-(\w+)-to-(\w+)\z/)&.captures
      return ["translation", { from: from, to: to }] if from
      return [name, {}] if TASKS.key?(name)

      alike = Hints.similar(name, TASKS.keys)
      hints = [*("Did you mean #{alike}?" if alike), "Known are #{TASKS.keys.join(", ")}"]
      raise ArgumentError, Hints.with("unknown task #{name.inspect}", hints)
    end

    # Labels are judged by GLiClass where the model is of that kind.
    def class_for(model)
      return GLiClass if task == "zero-shot-classification" && (GLiClass === model || gliclass?(model))

      ModelKind.class_for(TASKS.fetch(task))
    end

    def gliclass?(source)
      source && !(Model === source) && ModelKind.of(source) == :gliclass
    rescue Error
      false
    end

    def loaded(klass, source, options)
      return klass.from_pretrained(*source, **options) if source || klass.const_defined?(:DEFAULT_MODEL_PATH)

      raise ArgumentError, "#{task} has no default model: say which one, as in " \
                           "Candle.pipeline(#{task.inspect}, \"owner/name\")"
    end

    def ranked(query, documents, **options)
      model.rerank(query, documents, **options).map { |hit| hit.slice(:doc_id, :score) }
    end

    def labels(input, top_k: nil, **options)
      found = model.classify(input, top_k: top_k || 1, **options)
      return found if top_k

      TextInput.text?(input) ? found.first : found.map(&:first)
    end

    def zero_shot(input, labels, **options)
      one = lambda do |text|
        found = judged(text, labels, **options)
        { sequence: text, labels: found.map { |entry| entry[:label] }, scores: found.map { |entry| entry[:score] } }
      end
      TextInput.text?(input) ? one.call(input) : input.map(&one)
    end

    def judged(text, labels, **options)
      return model.zero_shot(text, labels, **options) unless GLiClass === model

      model.classify(text, labels: labels, multi_label: false, **options)
    end

    def answered(question, context, top_k: nil, **options)
      found = model.answer(question, context, top_k: top_k || 1, **options)
      shaped = ->(answer) { { answer: answer[:text] }.merge(answer.slice(:score, :start, :end)) }
      Array === found ? found.map(&shaped) : found && shaped.call(found)
    end

    def extracted(input, **options)
      found = model.extract(input, **options)
      shaped = lambda do |list|
        list.map do |entity|
          { entity_group: entity[:label], word: entity[:text] }.merge(entity.slice(:score, :start, :end))
        end
      end
      TextInput.text?(input) ? shaped.call(found) : found.map(&shaped)
    end

    # Every entity, with words whole.
    def entities(input, aggregation_strategy: :first, confidence_threshold: 0, **options)
      found = model.extract_entities(input, aggregation: aggregation_strategy,
                                            confidence_threshold: confidence_threshold, **options)
      shaped = ->(list) { list.map { |entity| ENTITY.transform_values { |name| entity[name] } } }
      TextInput.text?(input) ? shaped.call(found) : found.map(&shaped)
    end

    def filled(input, **options)
      found = model.fill(input, **options)
      shaped = lambda do |entry|
        next entry.map(&shaped) if entry.is_a?(Array)

        { score: entry[:score], token: entry[:id], token_str: entry[:token], sequence: entry[:sequence] }
      end
      found.map(&shaped)
    end

    # The prompt is a part of the text, as in transformers.
    def generated(input, return_full_text: true, **options)
      return chatted(input, return_full_text, **options) if Array === input && input.any?(Hash)

      texts = model.generate(input, **options, include_prompt: return_full_text)
      TextInput.text?(input) ? [{ generated_text: texts }] : texts.map { |text| [{ generated_text: text }] }
    end

    def chatted(messages, full, **options)
      answer = model.chat(messages, **options)
      [{ generated_text: full ? [*messages, { role: "assistant", content: answer }] : answer }]
    end

    def rewritten(input, **options)
      name, texts = case task
                    when "summarization" then [:summary_text, model.summarize(input, **options)]
                    when "translation" then [:translation_text, model.translate(input, **@languages, **options)]
                    else [:generated_text, model.generate(input, **options)]
                    end
      Array(texts).map { |text| { name => text } }
    end

    def named_things(input, labels, threshold: 0.1, **options)
      model.detect(input, labels: labels, threshold: threshold, **options)
    end

    def parts(input, **options)
      model.segment(input, **options)
    end

    def depths(input, **options)
      model.estimate(input, **options)
    end

    def things(...) = model.detect(...)

    def audio_labels(...) = model.classify_audio(...)

    def image_labels(*inputs, **options)
      model.is_a?(CLIP) ? model.classify_image(*inputs, **options) : model.classify(*inputs, **options)
    end

    def spoken(input, **options)
      found = model.transcribe(input, **options)
      Array === found ? found.map { |one| { text: one.text } } : { text: found.text }
    end

    def described(input, **options)
      one = ->(image) { [{ generated_text: model.describe(image, **options) }] }
      Array === input ? input.map(&one) : one.call(input)
    end
  end
end
