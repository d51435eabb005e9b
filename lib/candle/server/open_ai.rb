# frozen_string_literal: true

require "securerandom"

module Candle
  class Server
    # OpenAI's dialect: what its endpoints share, the list of models, and embeddings.
    #
    # @api private
    class OpenAI < API
      # What sampling is where a request does not say it.
      USUAL = { temperature: 1.0 }.freeze
      private_constant :USUAL

      # @param problem [Problem]
      # @return [Hash]
      def error(problem)
        kind = case problem.status
               when 401 then "authentication_error"
               when 403 then "permission_error"
               when 429 then "rate_limit_error"
               when 500.. then "server_error"
               else "invalid_request_error"
               end
        { error: { message: problem.message, type: kind, param: problem.param, code: problem.code } }
      end

      # @param _request [Request]
      # @return [Array] an answer of Rack: every model
      def models_list(_request)
        json({ object: "list", data: models.with_adapters.map { |entry| described(entry) } })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: one model
      def model(request)
        name = request.path.delete_prefix("/v1/models/").gsub(/%\h\h/) { |code| code[1, 2].hex.chr }
        json(described(models.fetch(name.force_encoding(Encoding::UTF_8))))
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: vectors
      def embeddings(request)
        entry = models.fetch(request.field("model", String, default: nil), :embedding, *EmbeddingInputs::KINDS)
        form = request.field("encoding_format", "float", "base64", default: "float")
        dimensions = request.field("dimensions", Integer, default: nil)
        inputs = embedding_inputs(entry, request.field("input", String, Array))
        vectors, tokens = compute(request) { embed(entry.model, inputs, dimensions) }
        count_tokens(entry, input: tokens)
        data = vectors.each_with_index.map do |packed, index|
          { object: "embedding", index: index,
            embedding: form == "base64" ? [packed].pack("m0") : packed.unpack("e*") }
        end
        json({ object: "list", model: entry.name, data: data, usage: { prompt_tokens: tokens, total_tokens: tokens } })
      end

      private

      def described(entry)
        { id: entry.name, object: "model", created: (entry.loaded_at || Time.now).to_i, owned_by: "red-candle",
          kind: entry.kind, **(entry.adapter ? { parent: entry.parent } : {}) }
      end

      # A text, several, the tokens of one, or of several; texts and images for image models.
      def embedding_inputs(entry, input)
        raise invalid("input must not be empty", param: "input") if input.empty?
        return mixed_inputs(entry, input, "input") unless entry.kind == :embedding
        return texts(input, "input").first unless input.is_a?(Array) && !input.all?(String)

        token_lists(input, "input")
      end

      def embed(model, inputs, dimensions)
        return inputs.embed(model, as: :packed, dimensions: dimensions) if inputs.is_a?(EmbeddingInputs)

        if inputs.first.is_a?(Array)
          [model.embed_ids(inputs, dimensions: dimensions, as: :packed), inputs.sum(&:size)]
        else
          [model.embed(inputs, dimensions: dimensions, as: :packed, truncate: false),
           inputs.sum { |text| model.count_tokens(text) }]
        end
      end

      # @return [Hash] some of the records, the newest first unless the client wants it otherwise
      def page(request, records, most, &shown)
        size = request.query.fetch("limit", [most, 20].min.to_s)
        unless size.match?(/\A\d{1,6}\z/) && size.to_i.between?(1, most)
          raise invalid("limit must be from 1 to #{most}", param: "limit")
        end

        records = records.reverse unless request.query["order"] == "asc"
        after = request.query["after"]
        records = records.drop_while { |record| record[:id] != after }.drop(1) if after
        data = records.first(size.to_i)
        { object: "list", data: data.map(&shown), first_id: data.first&.fetch(:id), last_id: data.last&.fetch(:id),
          has_more: records.size > data.size }
      end

      def identifier(prefix)
        "#{prefix}-#{SecureRandom.hex(12)}"
      end

      # The fields of {GenerationConfig} that chats and completions share.
      def sampling(request)
        stop = request.field("stop", String, Array, default: [])
        raise invalid("stop must be a text or an array of texts", param: "stop") unless Array(stop).all?(String)

        { max_length: max_tokens(request), stop_sequences: Array(stop), logit_bias: logit_bias(request),
          seed: request.field("seed", Integer, default: nil),
          temperature: request.field("temperature", Numeric, default: nil),
          top_p: request.field("top_p", Numeric, default: nil), top_k: request.field("top_k", Integer, default: nil),
          min_p: request.field("min_p", Numeric, default: nil),
          presence_penalty: request.field("presence_penalty", Numeric, default: nil),
          frequency_penalty: request.field("frequency_penalty", Numeric, default: nil),
          repetition_penalty: request.field("repetition_penalty", Numeric, default: nil) }
      end

      # Biases by the ids of tokens, which JSON writes as texts of digits.
      def logit_bias(request)
        given = request.field("logit_bias", Hash, default: {})
        return if given.empty?

        wrong = given.keys.find { |id| !id.match?(/\A\d{1,10}\z/) }
        if wrong
          raise invalid("logit_bias has the key #{wrong.inspect[0, 40]}, not the id of a token",
                        param: "logit_bias")
        end

        LogitBias.checked(given)
      rescue ArgumentError => e
        raise invalid(e.message, param: "logit_bias")
      end

      def max_tokens(request)
        name = %w[max_completion_tokens max_tokens].find { |candidate| request.json[candidate] }
        name && answer_length(request, name)
      end

      def answers(request)
        count = request.field("n", Integer, default: 1)
        return count if count.between?(1, limits.answers)

        raise invalid("n must be from 1 to #{limits.answers}", param: "n")
      end

      def finish_reason(result)
        return "tool_calls" if result.tool_calls.any?

        result.completion.finish_reason == :length ? "length" : "stop"
      end

      def usage(results)
        prompt = results.first.completion.usage.prompt_tokens
        output = results.sum { |result| result.completion.usage.completion_tokens }
        { prompt_tokens: prompt, completion_tokens: output, total_tokens: prompt + output,
          prompt_tokens_details: { cached_tokens: results.first.completion.usage.cached_tokens.to_i },
          completion_tokens_details: { reasoning_tokens: results.sum { |result| reasoning_tokens(result) } } }
      end

      def reasoning_tokens(result)
        result.completion.respond_to?(:reasoning_tokens) ? result.completion.reasoning_tokens : 0
      end

      def usage_wanted?(request)
        options = request.field("stream_options", Hash, default: {})
        options["include_usage"] == true
      end

      # A token as text: vocabularies write spaces and bytes in ways of their own.
      def token_text(tokenizer, id, token)
        return token.tr("▁", " ") if token&.include?("▁")

        tokenizer.decode([id], skip_special_tokens: false)
      end
    end
  end
end
