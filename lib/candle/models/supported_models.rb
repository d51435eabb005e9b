# frozen_string_literal: true

Candle::Native.complete(:SupportedModels)

module Candle
  # The table of model families, by `model_type`; see {Candle.supported_models}.
  #
  # @api private
  module SupportedModels
    # Two towers; the table has each of them.
    CLIP = %w[clip siglip siglip2 metaclip_2].map { |type| [type, %w[clip], []] }.freeze
    # Parts of other checkpoints, which have a `model_type` of their own, unless they make texts or are listed alone.
    PART = /_vision(_model)?\z|_text_model\z|\Apixtral\z/
    FORMATS = %w[safetensors pytorch].freeze
    # Of whisper.cpp, beside what a checkpoint of transformers is.
    FURTHER = { "whisper" => %w[gguf ggml] }.freeze
    # One forward runs on all of them, so that every family does.
    DEVICES = %w[cpu cuda metal].freeze
    private_constant :CLIP, :PART, :FORMATS, :FURTHER

    class << self
      # @param devices [Array<String>] the devices that are listed; those that this build can use
      # @return [Array<Hash>] see {Candle.supported_models}
      def list(devices: of_this_build)
        entries = _entries + CLIP
        types = entries.map(&:first)
        whole = entries.reject { |type, tasks, _| part?(type, types) && !tasks.include?("llm") }
        whole.group_by(&:first).sort.map { |type, group| facts(type, group, devices) }
      end

      # @param config [String] a `config.json`
      # @return [Array, nil] the architecture of GGUF files, whether matrices are stored `[in, out]`, and pairs of
      #   modules: in a checkpoint and in a file; nil where there are no such files
      def gguf_names(config)
        _gguf_names(config)
      end

      private

      def of_this_build
        DEVICES & BuildInfo.available_backends.map(&:downcase)
      end

      # AIMv2's vision model is a checkpoint of its own.
      def part?(type, types)
        whole = type.sub(PART, "")
        whole != type && (whole.empty? || types.include?(whole))
      end

      # Vision-language models are told by the projector of their `mmproj` file.
      def facts(type, group, devices)
        images, texts = group.partition { |_, tasks, _| tasks.include?("vlm") }
        architectures, projectors = [texts, images].map { |entries| entries.flat_map(&:last).uniq }
        tasks = group.flat_map { |_, names, _| names.map(&:to_sym) }.uniq
        gguf = (architectures + projectors).empty? ? [] : ["gguf"]
        { model_type: type, tasks: ModelKind::CLASSES.keys & tasks, formats: FORMATS + FURTHER.fetch(type, gguf),
          architectures: architectures, projectors: projectors, devices: devices }
      end
    end
  end
end
