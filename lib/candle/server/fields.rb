# frozen_string_literal: true

module Candle
  class Server
    # The fields that requests may have. Others are ignored, which the log says once for each of them.
    #
    # @api private
    class Fields
      # What sampling knows, in OpenAI's words, and what seq2seq models take beside it.
      SAMPLING = ["stop", "logit_bias", "seed", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
                  "frequency_penalty", "repetition_penalty", *Rewriting::FIELDS].freeze
      ANSWERS = [*SAMPLING, "model", "max_completion_tokens", "max_tokens", "n", "stream", "stream_options"].freeze
      OPTIONS = [*Ollama::OPTIONS.keys, *Rewriting::FIELDS].freeze
      PARAMETERS = %w[candidate_labels hypothesis_template multi_label top_k prompt src_lang
                      tgt_lang max_new_tokens generate_parameters temperature top_p seed repetition_penalty stop
                      do_sample return_full_text typical_p aggregation_strategy ignore_labels stride function_to_apply
                      targets].freeze
      # What a conversation is, in Anthropic's words.
      CONVERSATION = ["model", "messages", "system", "tools", "tool_choice", { "output_config" => %w[format effort] },
                      { "thinking" => %w[type budget_tokens display] }].freeze
      # What is asked of an audio file.
      SPOKEN = %w[file model language prompt response_format temperature stream timestamp_granularities].freeze
      private_constant :SAMPLING, :ANSWERS, :OPTIONS, :PARAMETERS, :CONVERSATION, :SPOKEN

      # Fields by path; those of an object within a field are listed in a Hash.
      KNOWN = {
        "/v1/embeddings" => %w[model input encoding_format dimensions],
        "/v1/chat/completions" => [*ANSWERS, "messages", "tools", "tool_choice", "response_format", "logprobs",
                                   "top_logprobs", "reasoning_effort", "chat_template_kwargs", "parallel_tool_calls"],
        "/v1/completions" => [*ANSWERS, "prompt", "suffix", "best_of", "echo", "logprobs"],
        "/v1/responses" => [*SAMPLING, "model", "input", "instructions", "previous_response_id", "tools",
                            "tool_choice", "text", "include", "top_logprobs", "max_output_tokens", "stream",
                            "parallel_tool_calls", "store", "prompt_cache_key", { "reasoning" => %w[effort summary] }],
        "/v1/load_lora_adapter" => %w[lora_name lora_path model],
        "/v1/unload_lora_adapter" => %w[lora_name model],
        "/v1/batches" => %w[input_file_id endpoint completion_window metadata],
        "/v1/messages" => [*CONVERSATION, "max_tokens", "stop_sequences", "stream", "temperature", "top_p", "top_k",
                           "metadata", *Rewriting::FIELDS],
        "/v1/messages/count_tokens" => [*CONVERSATION, *Rewriting::FIELDS],
        "/v1/audio/transcriptions" => SPOKEN,
        "/v1/audio/translations" => SPOKEN,
        "/v1/rerank" => %w[model query documents top_n return_documents],
        "/v2/rerank" => %w[model query documents top_n return_documents],
        "/" => ["model", "inputs", "query", "texts", "raw_scores", "return_text", "normalize", "truncate",
                "prompt_name", "dimensions", "stream",
                { "parameters" => PARAMETERS }],
        "/embed" => %w[model inputs normalize truncate prompt_name dimensions],
        "/embed_all" => %w[model inputs],
        "/embed_sparse" => %w[model inputs truncate prompt_name normalize dimensions],
        "/predict" => %w[model inputs],
        "/rerank" => %w[model query texts raw_scores return_text],
        "/similarity" => %w[model inputs truncate normalize prompt_name dimensions],
        "/tokenize" => %w[model inputs add_special_tokens],
        "/decode" => %w[model ids skip_special_tokens],
        "/translate" => ["model", "inputs", { "parameters" => PARAMETERS }],
        "/summarize" => ["model", "inputs", { "parameters" => PARAMETERS }],
        "/classify_image" => ["model", "inputs", { "parameters" => PARAMETERS }],
        "/describe" => ["model", "inputs", { "parameters" => PARAMETERS }],
        "/api/generate" => ["model", "prompt", "raw", "images", "system", "stream", "format", "think",
                            { "options" => OPTIONS }],
        "/api/chat" => ["model", "messages", "tools", "stream", "format", "think", { "options" => OPTIONS }],
        "/api/embed" => %w[model input truncate dimensions],
        "/api/embeddings" => %w[model prompt truncate dimensions],
        "/api/show" => %w[model name],
        "/api/pull" => %w[model name stream],
        "/api/v1/embed" => %w[model texts images pooling normalize task],
        "/api/v1/entities" => %w[model texts confidence_threshold]
      }.freeze

      # What clients send that changes no answer.
      WITHOUT_EFFECT = %w[user metadata store service_tier safety_identifier prompt_cache_key keep_alive verbose
                          insecure].freeze
      # So many names are told at most: strangers make them up.
      MOST = 200
      private_constant :WITHOUT_EFFECT, :MOST

      # @param path [String]
      # @return [Array<String>] the names of its fields, those within others as in `"options.seed"`
      def self.of(path)
        KNOWN.fetch(path, []).flat_map do |field|
          next field unless field.is_a?(Hash)

          field.flat_map { |name, inner| [name, *inner.map { |one| "#{name}.#{one}" }] }
        end
      end

      def initialize
        @told = {}
        @mutex = Mutex.new
      end

      # Logs the fields that a request has and the path does not know, unless they were logged before.
      #
      # @param path [String]
      # @param json [Hash{String => Object}] the body
      # @return [void]
      def tell(path, json)
        return unless KNOWN.key?(path)

        known = self.class.of(path)
        (names(json, known) - known).each do |name|
          next unless first?(path, name)

          Candle.logger.warn do
            "POST #{path}: the field #{shown(name)} is unknown and ignored#{advice(name, known)}; this is logged once"
          end
        end
      end

      private

      def names(json, known)
        json.flat_map do |name, value|
          next [] if WITHOUT_EFFECT.include?(name) || [nil, {}, []].include?(value)

          inner = value.is_a?(Hash) && known.any? { |one| one.start_with?("#{name}.") } ? value.keys : []
          [name, *inner.map { |one| "#{name}.#{one}" }]
        end
      end

      def first?(path, name)
        @mutex.synchronize do
          next false if @told.size >= MOST || @told.key?([path, name[0, 80]])

          @told[[path, name[0, 80]]] = true
        end
      end

      def shown(name)
        name[0, 80].inspect
      end

      def advice(name, known)
        return unless defined?(DidYouMean::SpellChecker) && name.size <= 80

        found = DidYouMean::SpellChecker.new(dictionary: known).correct(name).first
        " (did you mean #{found}?)" if found
      end
    end
  end
end
