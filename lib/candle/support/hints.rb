# frozen_string_literal: true

module Candle
  # What a user may have meant by a name that a call does not know: one that is spelled alike, or what another library
  # calls it.
  #
  # @api private
  module Hints
    # Keywords of other libraries, and what they are called here. Of several the first that the call takes counts.
    KEYWORDS = {
      stop: %i[stop_sequences], stop_words: %i[stop_sequences], eos: %i[stop_sequences],
      num_predict: %i[max_length], n_predict: %i[max_length], max_output_tokens: %i[max_length],
      max_completion_tokens: %i[max_length], max_seq_length: %i[max_length], truncation: %i[truncate],
      repeat_penalty: %i[repetition_penalty], repeat_last_n: %i[repetition_penalty_last_n],
      random_state: %i[seed], top_n: %i[top_k top], k: %i[top_k], limit: %i[top_k],
      response_format: %i[schema], json_schema: %i[schema], format: %i[schema as], regex: %i[pattern],
      system_prompt: %i[system], lora: %i[adapters adapter], adapter_name: %i[adapter],
      torch_dtype: %i[dtype], quantization: %i[dtype], precision: %i[dtype], device_map: %i[device],
      n_gpu_layers: %i[device], n_ctx: %i[context_length max_length], num_ctx: %i[context_length max_length],
      model_max_length: %i[max_length context_length], filename: %i[gguf_file], file: %i[gguf_file],
      use_auth_token: %i[token], hf_token: %i[token], cache_folder: %i[cache_dir],
      normalize_embeddings: %i[normalize], pooling_mode: %i[pooling], pooling_type: %i[pooling],
      batch_size: %i[batch_tokens batch], show_progress_bar: %i[progress], output_value: %i[as],
      output: %i[as], truncate_dim: %i[dimensions embedding_size], dim: %i[dimensions],
      threshold: %i[confidence_threshold], min_score: %i[confidence_threshold],
      aggregation_strategy: %i[aggregation], candidate_labels: %i[labels], src_lang: %i[from], tgt_lang: %i[to],
      beams: %i[num_beams], draft_model: %i[draft]
    }.freeze

    # The same where no keyword does it.
    ADVICE = {
      stream: "pass a block or call generate_stream or chat_stream",
      do_sample: "temperature: 0 always takes the likeliest token",
      n: "call it once per text, or pass an Array of prompts",
      messages: "messages are the first argument of chat",
      prompt: "the prompt is the first argument",
      input: "the text is the first argument", text: "the text is the first argument",
      texts: "the texts are the first argument", documents: "the documents are an argument without a name",
      trust_remote_code: "leave it out, since no code of a model is ever run",
      load_in_4bit: "load a GGUF file, such as one of type Q4_K_M",
      load_in_8bit: "use dtype: :int8 or a GGUF file of type Q8_0",
      convert_to_tensor: "use as: :tensor", convert_to_numpy: "use as: :packed or as: :tensor",
      low_cpu_mem_usage: "leave it out, since weights are memory-mapped",
      keep_alive: "leave it out: a model stays loaded until it is closed"
    }.freeze
    private_constant :KEYWORDS, :ADVICE

    module_function

    # @param unknown [Hash{Symbol => Object}] keywords that a call does not take
    # @param known [Array<Symbol>] those that it takes
    # @raise [ArgumentError] always, as Ruby does it, with what was meant
    def refuse(unknown, known)
      names = unknown.keys
      message = "unknown keyword#{"s" if names.size > 1}: #{names.map(&:inspect).join(", ")}"
      raise ArgumentError, with(message, names.filter_map { |name| keyword(name, known) })
    end

    # @param name [Symbol, String] a keyword that a call does not take
    # @param known [Array<Symbol>] those that it takes
    # @return [String, nil] what was meant, as a sentence
    def keyword(name, known)
      name = name.to_sym
      meant = KEYWORDS.fetch(name, []).find { |candidate| known.include?(candidate) }
      return "Use #{meant}: instead of #{name}:" if meant
      return "Instead of #{name}: #{ADVICE[name]}" if ADVICE.key?(name)

      alike = similar(name, known)
      "Did you mean #{alike}:?" if alike
    end

    # @param name [Symbol, String]
    # @param known [Array<Symbol, String>]
    # @return [String, nil] the one that is spelled most alike
    def similar(name, known)
      return unless defined?(::DidYouMean::SpellChecker)

      ::DidYouMean::SpellChecker.new(dictionary: known.map(&:to_s)).correct(name.to_s).first
    end

    # @param message [String]
    # @param hints [Array<String>]
    # @return [String] both, as sentences
    def with(message, hints)
      hints.uniq.inject(message) { |text, hint| "#{text}#{"." unless text.end_with?("?")} #{hint}" }
    end
  end
end
